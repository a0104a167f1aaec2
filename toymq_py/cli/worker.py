"""``toymq worker``: runs the workers of an application."""

import asyncio
import importlib
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import uvloop

from toymq.click_support import Duration
from toymq_py.cli import log_output
from toymq_py.command_group import USAGE
from toymq_py.config.option_schema import is_public, parse_address
from toymq_py.config.options import LogFormat
from toymq_py.errors import ConfigError, ToymqError

if TYPE_CHECKING:
    from toymq import App

logger = logging.getLogger("toymq.workers")

FAILED = 1
"""Exit code: the broker or the topic went away for good, or a task or thread of a job did not end."""


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option("--concurrency", type=click.IntRange(1, 10_000), help="Most jobs at once of each worker. Default: what it says.")
@click.option("--processes", type=click.IntRange(1, 512), default=1, show_default=True, help="Processes that share the jobs.")
@click.option("--reload", is_flag=True, help="Start anew when a Python file below the working directory changes.")
@click.option("--shutdown-timeout", type=Duration(), default="25s", show_default=True, help="Time for running jobs to end.")
@click.option(
    "--metrics", "metrics_at", metavar="HOST:PORT",
    help="Serve /metrics (Prometheus) and /healthz there; of several processes the second at PORT+1, and so on.",
)  # fmt: skip
@click.option("--log-level", default="info", show_default=True, help="debug, info, warning or error.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--parent", type=int, hidden=True, help="A descriptor that becomes readable when --processes is gone.")
def worker(
    target: str, *, concurrency: int | None, processes: int, reload: bool, shutdown_timeout: float, metrics_at: str | None,
    log_level: str, log_format: LogFormat, parent: int | None,
) -> None:  # fmt: skip
    """Run the workers of an application.

    APP is a `toymq.App` in MODULE, which is imported from the working directory: `toymq worker shop.jobs:app`. The broker
    is the app's own, or that of TOYMQ_URL.

    SIGTERM and Ctrl-C stop it: no new job begins, running jobs may take --shutdown-timeout, and unfinished ones go to other
    workers. Exit code 0, or 1 when something failed.
    """
    with log_output.to_stderr(log_level, log_format):
        if reload or processes > 1:
            own = [target, "--shutdown-timeout", f"{shutdown_timeout}s", "--log-level", log_level, "--log-format", log_format]
            own += [] if concurrency is None else ["--concurrency", str(concurrency)]
            each = [of_process(metrics_at, number) for number in range(processes)]
            raise SystemExit(_run_processes(own, each, shutdown_timeout, watch=reload))
        app = load(target)
        with _listening(metrics_at) as listeners:
            code, all_ended = _run(_work(app, concurrency, shutdown_timeout, parent, listeners))
    if not all_ended:
        sys.stdout.flush()
        os._exit(code)  # Python would wait for what is left
    raise SystemExit(code)


def _run(work: Coroutine[Any, Any, bool]) -> tuple[int, bool]:
    """Run the workers in an event loop of their own. Returns: the exit code, and whether all tasks and threads of jobs
    ended."""
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    code, jobs_ended = 0, True
    try:
        jobs_ended = runner.run(work)
    except ToymqError as error:
        usage = isinstance(error, ConfigError)  # the next process would end the same way
        click.echo(f"toymq: {error}" if usage else f"toymq: {error.code}: {error}", err=True)
        code = USAGE if usage else FAILED
    rest_ended = runner.run(_end_the_rest())
    if rest_ended:
        runner.close()  # which waits for it without a limit
    elif jobs_ended:
        logger.error("tasks or threads that jobs have started do not end: the process ends without them")
    all_ended = jobs_ended and rest_ended
    return code if all_ended else code or FAILED, all_ended


async def _end_the_rest() -> bool:
    """Cancel the tasks that jobs have left in the event loop. Returns: whether these tasks and the thread pool of
    ``asyncio.to_thread`` have ended."""
    from toymq.workers.runner import STUBBORN_S

    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    ending = asyncio.get_running_loop().create_task(_until_ended(rest))
    await asyncio.wait([ending], timeout=STUBBORN_S)
    return ending.done()


async def _until_ended(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.gather(*tasks, return_exceptions=True)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


def of_process(metrics_at: str | None, number: int) -> list[str]:
    """The options that only process ``number`` gets: the port of its /metrics counts up. Raises: ConfigError."""
    if metrics_at is None:
        return []
    host, port = parse_address(metrics_at)
    if port == 0 and number > 0:
        raise ConfigError("--metrics with port 0 does not go with --processes, which count up from it: name one, 9464 say")
    return ["--metrics", f"{f'[{host}]' if ':' in host else host}:{port + number}"]


@contextmanager
def _listening(metrics_at: str | None) -> Iterator[list[socket.socket]]:
    """Listening sockets for the duration of this context. Raises: ConfigError, DataDirectoryError."""
    if metrics_at is None:
        yield []
        return
    from toymq_py.server import Server, cannot_listen

    try:
        listeners = Server.bind(*parse_address(metrics_at))
    except OSError as error:
        raise ConfigError(cannot_listen("--metrics", metrics_at, error)) from None
    try:
        for listener in listeners:
            listener.listen()  # a request before the loop runs waits
            host, port = listener.getsockname()[:2]
            click.echo(f"toymq: metrics and health at http://{f'[{host}]' if ':' in host else host}:{port}/", err=True)
            if is_public(host):
                logger.warning("--metrics %s: other machines can read the names of functions", metrics_at)
        yield listeners
    finally:
        for listener in listeners:
            listener.close()


def _run_processes(arguments: Sequence[str], each: Sequence[Sequence[str]], shutdown_s: float, *, watch: bool) -> int:
    """Run this command in several processes; ``each`` has the additional arguments of each one. Returns: the exit code."""
    from toymq.broker_process import TOYMQ
    from toymq.workers.processes import Processes

    command = [*TOYMQ, "worker", *arguments]
    return Processes(command, each, watch=Path.cwd() if watch else None, shutdown_s=shutdown_s).run()


def load(target: str) -> "App":
    """The app that ``MODULE:APP`` names. Raises: ConfigError."""
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"{target} names no app: write MODULE:APP, `toymq worker shop.jobs:app` say")
    if not all(module_name.split(".")) or {"/", "\\"} & set(module_name):
        raise ConfigError(
            f"{module_name} is a path: start from the directory that the module is in, as `toymq worker shop.jobs:{name}` say"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # noqa: BLE001 (of the user's module)
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            hint = f"; write {module_name.removesuffix('.py')}:{name}" if module_name.endswith(".py") else ""
            raise ConfigError(
                f"there is no module {error.name}: start from the directory that it is in, {here} now{hint}"
            ) from None
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_of_the_user(frame.filename)]
        if isinstance(error, ToymqError) and own:
            raise ConfigError(f"{own[-1].filename}, line {own[-1].lineno}: {error}") from None
        sys.stderr.write("".join([*traceback.format_list(own), *traceback.format_exception_only(error)]))
        raise ConfigError(f"{module_name} cannot be imported: {type(error).__name__}, see above") from None
    from toymq import App

    found = getattr(module, name, None)
    if isinstance(found, App):
        return found
    apps = sorted(key for key, value in vars(module).items() if isinstance(value, App))
    hint = f"; there is {module_name}:{apps[0]}" if apps else f"; write `{name} = toymq.App()` there"
    raise ConfigError(f"{module_name} has no toymq.App that is called {name}{hint}")


def _is_of_the_user(filename: str) -> bool:
    """Whether a file belongs to the user's code, not to Python's import system or this package."""
    import toymq

    ours = (str(Path(toymq.__file__).parent), str(Path(__file__).parents[1]))
    return "importlib" not in filename and not filename.startswith(ours)


async def _work(
    app: "App", concurrency: int | None, shutdown_s: float, parent: int | None, listeners: Sequence[socket.socket]
) -> bool:
    """Run the app until a signal. ``listeners``: for its pages /metrics, /healthz. Returns: whether all jobs ended.

    Raises: ToymqError.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    running = asyncio.current_task()
    assert running is not None

    def interrupt() -> None:
        """Handle Ctrl-C: stop after the running jobs; the second time without waiting for them."""
        if stop.is_set():
            running.cancel()
        else:
            click.echo("toymq: running jobs have time to end; Ctrl-C again gives them to other workers now", err=True)
            stop.set()

    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, interrupt if parent is None else _leave_it_to_the_parent)
    if parent is not None:
        loop.add_reader(parent, stop.set)
    with _serving(app, loop, listeners):
        try:
            return await app.run(stop, concurrency=concurrency, shutdown=shutdown_s)
        except asyncio.CancelledError:
            return False


def _leave_it_to_the_parent() -> None:
    """Ignore Ctrl-C in a child process: at a terminal it reaches the parent, too, which ends the children."""


@contextmanager
def _serving(app: "App", loop: asyncio.AbstractEventLoop, listeners: Sequence[socket.socket]) -> Iterator[None]:
    """Serve /metrics and /healthz while this context lasts."""
    if not listeners:
        yield
        return
    from toymq_py.net.host_names import AllowedHosts
    from toymq_py.observability.metrics_server import MetricsServer
    from toymq_py.observability.worker_pages import worker_pages

    pages = worker_pages(app.figures, app.problem, lambda: app.connected)
    server = MetricsServer(pages, loop, listeners, AllowedHosts())
    server.start()
    try:
        yield
    finally:
        server.stop()
