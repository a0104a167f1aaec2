"""``toymq serve``."""

import logging
import os
from typing import Any

import click

from toymq_py.cli import logs
from toymq_py.cli.options import serve_options, unknown_variables
from toymq_py.config import ServeOptions

logger = logging.getLogger("toymq_py.daemon")


@click.command()
@serve_options
def serve(*, config: str | None, **values: Any) -> None:
    """Run the broker until SIGTERM or Ctrl-C.

    Prints one line with its address when it is ready. Every option is also read from the environment: --data-dir from
    TOYMQ_DATA_DIR, and so on; and from a TOML file: `data_dir = "./data"`. The command line goes before the environment, that
    before the file. Durations take 250ms, 30s, 24h; sizes take bytes or 64MiB. `toymq config show` tells which holds.
    """
    options = ServeOptions(**values)
    with logs.to_stderr(options.log_level):
        _serve(options, config)


def _serve(options: ServeOptions, file: str | None) -> None:
    from toymq_py import daemon  # `toymq --help` need not load the event loop

    for line in unknown_variables():
        logger.warning("%s", line)
    if options.fsync != "always":
        logger.warning("--fsync %s: OK does not mean that a message survives a power cut", options.fsync)

    def ready(addresses: list[str]) -> None:
        source = f", options from {file}" if file is not None else ""
        click.echo(f"toymq {' '.join(addresses)} ready, data in {options.data_dir}{source} (pid {os.getpid()})")

    daemon.serve(options, ready)
