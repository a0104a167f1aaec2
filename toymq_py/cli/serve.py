"""``toymq serve``."""

import logging
import os
from collections.abc import Callable
from typing import Any

import click

from toymq_py.cli import logs
from toymq_py.config import BrokerOptions
from toymq_py.errors import ConfigError, DataDirectoryError
from toymq_py.model import parse_duration_ms, parse_size

DEFAULTS = BrokerOptions()


class Quantity(click.ParamType[int]):
    """A duration or a size with its unit, as an integer in milliseconds or bytes."""

    def __init__(self, name: str, parse: Callable[[str], int]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return self._parse(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)


DURATION = Quantity("duration", parse_duration_ms)
SIZE = Quantity("size", parse_size)


def parse_address(text: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port``. Raises: ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigError(f"{text!r} is no address: write host:port, 127.0.0.1:6789 say")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    return host in ("localhost", "::1") or host.startswith("127.")


@click.command()
@click.option("--data-dir", default=DEFAULTS.data_dir, show_default=True, help="Where everything is kept.")
@click.option("--listen", default="127.0.0.1:6789", show_default=True, help="Address; port 0 takes a free one.")
@click.option(
    "--fsync",
    type=click.Choice(["always", "interval", "never"]),
    default=DEFAULTS.fsync,
    show_default=True,
    help="When a record is synced: before its OK, every --fsync-interval, or when the system likes to.",
)
@click.option("--fsync-interval", "fsync_interval_ms", type=DURATION, default="5ms", show_default=True)
@click.option("--segment-bytes", type=SIZE, default="64MiB", show_default=True, help="Size at which a log file is sealed.")
@click.option(
    "--min-free-bytes",
    type=SIZE,
    default="256MiB",
    show_default=True,
    help="Publishing is refused (DISK_LOW) below this; acks and deliveries go on.",
)
@click.option("--max-payload", "max_payload_bytes", type=SIZE, default="2MiB", show_default=True, help="At most 64MiB.")
@click.option("--max-connections", type=int, default=DEFAULTS.max_connections, show_default=True)
@click.option("--max-topics", type=int, default=DEFAULTS.max_topics, show_default=True)
@click.option("--max-consumers", type=int, default=DEFAULTS.max_consumers, show_default=True, help="Per topic.")
@click.option("--max-subscriptions", type=int, default=DEFAULTS.max_subscriptions, show_default=True, help="Per session.")
@click.option(
    "--max-inflight-bytes",
    type=SIZE,
    default="64MiB",
    show_default=True,
    help="Publishes of one connection that may wait for the disk.",
)
@click.option(
    "--visibility",
    "visibility_ms",
    type=DURATION,
    default="30s",
    show_default=True,
    help="How long a delivery may stay unacked before it is delivered again.",
)
@click.option("--dedupe-keys", type=int, default=DEFAULTS.dedupe_keys, show_default=True, help="Keys remembered per topic.")
@click.option("--dedupe-keys-total", type=int, default=DEFAULTS.dedupe_keys_total, show_default=True)
@click.option(
    "--retain-acked-for",
    "retain_acked_for_ms",
    type=DURATION,
    default="24h",
    show_default=True,
    help="How long a segment stays after every consumer has acked it.",
)
@click.option("--shutdown-timeout", "shutdown_timeout_ms", type=DURATION, default="5s", show_default=True)
@click.option("--strict-recovery", is_flag=True, help="Do not start when records are found lost.")
@click.option("--insecure-public", is_flag=True, help="Listen beyond this machine although there is no authentication.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def serve(*, listen: str, log_level: str, insecure_public: bool, **values: Any) -> None:
    """Run the broker until SIGTERM or Ctrl-C.

    Prints one line with its address when it is ready. Every option is also read from the environment: --data-dir from
    TOYMQ_DATA_DIR, and so on. Durations take 250ms, 30s, 24h; sizes take bytes or 64MiB.
    """
    with logs.to_stderr(log_level):
        _serve(listen, insecure_public, BrokerOptions(**values))


def _serve(listen: str, insecure_public: bool, options: BrokerOptions) -> None:
    from toymq_py import daemon  # `toymq --help` need not load the event loop

    host, port = parse_address(listen)
    if not is_loopback(host) and not insecure_public:
        raise ConfigError(
            f"{host} can be reached from other machines and there is no authentication yet; "
            "listen on 127.0.0.1, or insist with --insecure-public"
        )
    if options.fsync != "always":
        logging.getLogger("toymq_py.daemon").warning(
            "--fsync %s: OK does not mean that a message survives a power cut", options.fsync
        )

    def ready(addresses: list[str]) -> None:
        click.echo(f"toymq {' '.join(addresses)} ready, data in {options.data_dir} (pid {os.getpid()})")

    try:
        daemon.serve(options, host, port, ready)
    except OSError as error:
        raise DataDirectoryError(f"cannot listen on {listen}: {error.strerror or error}") from error


for _option in serve.params:
    _option.envvar = "TOYMQ_" + _option.opts[0].removeprefix("--").replace("-", "_").upper()
