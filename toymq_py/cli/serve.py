"""``toymq serve``: run the broker."""

import gc
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from toymq_py import build, forking
from toymq_py.cli import log_output
from toymq_py.cli.options import doubts, read_file, serve_options, sources, unknown_variables, without_a_clients
from toymq_py.command_group import said_by
from toymq_py.config.options import ServeOptions
from toymq_py.errors import LocalError

logger = logging.getLogger("toymq_py.daemon")
DEFAULT_LEVELS = ServeOptions().log_level


@click.command()
@serve_options
@click.pass_context
def serve(ctx: click.Context, /, *, config: str | None, **values: Any) -> None:
    """Run the broker until SIGTERM or Ctrl-C.

    Prints one line with its address when it is ready. Every option is also read from the environment: --data-dir from
    TOYMQ_DATA_DIR, and so on; and from a TOML file: `data_dir = "./data"`. The command line overrides the environment,
    which overrides the file. Durations take 250ms, 30s, 24h, and a number alone is milliseconds; sizes take bytes or 64MiB.
    `toymq config show` shows the effective values. SIGHUP reads log_level in the file again.
    """
    options = ServeOptions(**without_a_clients(ctx, values), sources=sources(ctx, config))
    reloads: dict[str, Callable[[], None]] = {}
    if config is not None:
        pinned = ctx.get_parameter_source("log_level") in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)
        reloads["log levels"] = lambda: _read_levels(options, config, pinned=pinned)
    said = (*doubts(ctx), *unknown_variables())
    if options.cluster is not None:
        raise SystemExit(_supervise(options, config, reloads, said))
    if options.workers > 1:
        raise SystemExit(_serve_workers(options, config, reloads, said))
    with log_output.to_stderr(options.log_level, options.log_format):
        for line in said:
            logger.warning("%s", line)
        _serve(options, config, reloads)


def _read_levels(options: ServeOptions, file: str, *, pinned: bool) -> None:
    """Apply the ``log_level`` of the file, unless the command line or the environment has one. Raises: ConfigError."""
    values = read_file(file)
    if not pinned:
        log_output.set_levels(values.get("log_level", DEFAULT_LEVELS))


def _serve(options: ServeOptions, file: str | None, reloads: Mapping[str, Callable[[], None]]) -> None:
    from toymq_py import daemon  # `toymq --help` need not load the event loop

    if options.fsync != "always":
        logger.warning("--fsync %s: OK does not mean that a message survives a power cut", options.fsync)
    try:
        daemon.serve(options, lambda addresses: _say_ready(options, file, addresses), reloads)
    finally:
        gc.freeze()  # the process ends: the last collection would look at every object of thousands of topics, 0.2 s per 1,000


def _say_ready(options: ServeOptions, file: str | None, addresses: list[str], waits_for: str = "") -> None:
    source = f", options from {file}" if file is not None else ""
    to_answer = f" to answer, not to serve; {waits_for}" if waits_for else ""
    line = f"toymq {' '.join(addresses)} ready{to_answer}, data in {options.data_dir}{source} (pid {os.getpid()})"
    try:
        click.echo(line)
    except OSError as error:  # its reader is gone, or its disk is full: the clients need no line
        with Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())  # else the end of the process tries again, and fails
        logger.warning("%s (standard output did not take this line: %s)", line, said_by(error))
    if not build.compiled():
        logger.info("%s", build.FROM_SOURCE)


def _supervise(
    options: ServeOptions, file: str | None, reloads: Mapping[str, Callable[[], None]], said: Sequence[str]
) -> int:
    """Run a cluster node, and again after each end of its term. A log has a thread, which a fork does not copy: each node
    process opens its own, and the supervisor has one only while no node runs. Returns: the exit code."""
    from toymq_py.clock import SystemClock
    from toymq_py.cluster import process, supervisor  # only a cluster needs them

    first = [True]

    def run(lives: int) -> int:
        with log_output.to_stderr(options.log_level, options.log_format):
            for line in said if first[0] else ():
                logger.warning("%s", line)
            try:
                return process.run(options, partial(_say_ready, options, file), reloads, lives)
            except LocalError as error:
                logger.critical("%s", error)
                return forking.UNUSABLE
            except OSError as error:  # of the disk: it may have room later
                logger.critical("%s", error)
                return forking.CRASHED

    def say(line: str) -> None:
        first[0] = False
        with log_output.to_stderr(options.log_level, options.log_format):
            logger.warning("%s", line)

    process.preload(options)
    return supervisor.Supervisor(run, say, SystemClock()).supervise()


def _serve_workers(
    options: ServeOptions, file: str | None, reloads: Mapping[str, Callable[[], None]], said: Sequence[str]
) -> int:
    """Run a broker process for each worker. Each opens its own log: a fork does not copy its thread. Returns: the exit code."""
    from toymq_py import worker_processes  # only several workers need it
    from toymq_py.clock import SystemClock

    def run(seat: worker_processes.Seat) -> int:
        with log_output.to_stderr(options.log_level, options.log_format):
            try:
                seat.serve(lambda addresses: _say_ready(seat.options, file, addresses), reloads)
            except LocalError as error:
                logger.critical("worker %d: %s", seat.worker, error)
                return forking.UNUSABLE
            except OSError as error:  # of the disk: it may have room later
                logger.critical("worker %d: %s", seat.worker, error)
                return forking.CRASHED
        return 0

    def say(line: str) -> None:
        with log_output.to_stderr(options.log_level, options.log_format):
            logger.warning("%s", line)

    for line in said:
        say(line)
    with worker_processes.seats(options, SystemClock()) as found:
        return worker_processes.Workers(found, run, say, SystemClock()).supervise()
