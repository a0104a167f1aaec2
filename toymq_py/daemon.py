"""The broker process: loop, memory, descriptors, server, signals. The only user of uvloop."""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import uvloop

from toymq_py.auth.tokens import Authority, check_access, read_grants
from toymq_py.broker import Broker
from toymq_py.clock import Clock, SystemClock
from toymq_py.command_line import install_hint
from toymq_py.config.definitions import Definitions, parse
from toymq_py.config.option_schema import check_apart, is_public, parse_address
from toymq_py.config.options import ServeOptions
from toymq_py.errors import ConfigError, DataDirectoryError
from toymq_py.net.acceptor import BACKLOG
from toymq_py.net.certificates import Certificates
from toymq_py.net.host_names import AllowedHosts
from toymq_py.runtime import heap_trimming
from toymq_py.runtime.broker_loop import opened_broker
from toymq_py.runtime.definitions import apply_definitions, openable
from toymq_py.runtime.memory_watch import MemoryWatch
from toymq_py.server import Server
from toymq_py.text_files import read_text
from toymq_py.topic import Tracer

if TYPE_CHECKING:
    from toymq_py.gateway import HttpServer

logger = logging.getLogger("toymq_py.daemon")

DESCRIPTORS_SPARE = 256
"""Reserved for segments and directories, so that connections cannot use up all descriptors."""

READY_AS = {
    "--listen": "{}", "--http": "http://{}/", "--https": "https://{}/", "--tls-listen": "toymqs://{}",
    "--metrics": "http://{}/metrics",
}  # fmt: skip
"""The address of each listener in the line that says ready."""
IN_THE_CLEAR = {"--listen": "--tls-listen", "--http": "--https"}
"""Listeners without TLS, and the one with TLS."""


def serve(options: ServeOptions, ready: Callable[[list[str]], None], reloads: Mapping[str, Callable[[], None]]) -> None:
    """Run a broker until SIGTERM or SIGINT; a second signal ends the process at once. SIGHUP reads tokens and
    certificates again.

    Args:
        ready: called with the addresses, ``host:port``, ``toymqs://host:port``, those of HTTP and of the metrics, once
            connections are accepted.
        reloads: more files to read at SIGHUP, by their names in the log; each raises ConfigError.

    Raises: ConfigError, DirectoryLocked, DataDirectoryError.
    """
    wanted, authority, certificates = _read_definitions(options), _read_authority(options), _read_certificates(options)
    options = replace(options, max_connections=room_for_connections(options.max_connections))
    heap_trimming.set_up()
    _run(_serve(options, wanted, authority, certificates, ready, reloads))


def check_files(options: ServeOptions) -> list[str]:
    """Check the files that the options name. Blocks. Returns: a line for each error."""
    problems = []
    for read in (_read_definitions, _read_authority, _read_certificates):
        try:
            read(options)
        except ConfigError as error:
            problems.append(str(error))
    return problems


def _read_authority(options: ServeOptions) -> Authority | None:
    if options.auth_file is None:
        return None
    authority = Authority(read_grants(options.auth_file))
    if (unwise := check_access(options.auth_file)) is not None:
        logger.warning("%s", unwise)
    return authority


def _read_certificates(options: ServeOptions) -> Certificates | None:
    if options.tls_cert is None or options.tls_key is None:
        return None
    return Certificates(options.tls_cert, options.tls_key, options.tls_client_ca)


def _run(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def _read_definitions(options: ServeOptions) -> Definitions:
    path = options.definitions
    if path is None:
        return Definitions()
    wanted = parse(read_text(path, "the definitions"), path)
    for line in wanted.doubts:
        logger.warning("%s", line)
    if wanted.webhooks and options.http is None and options.https is None:
        raise ConfigError(f"{path}: the gateway pushes webhooks: they need --http or --https")
    return wanted


async def _serve(
    options: ServeOptions,
    wanted: Definitions,
    authority: Authority | None,
    certificates: Certificates | None,
    ready: Callable[[list[str]], None],
    reloads: Mapping[str, Callable[[], None]],
) -> None:
    loop = asyncio.get_running_loop()
    clock = SystemClock()
    reloads = dict(reloads)
    if authority is not None and (auth_file := options.auth_file) is not None:
        reloads["tokens"] = lambda: authority.replace(read_grants(auth_file))
    if certificates is not None:
        reloads["certificates"] = certificates.reload
    with contextlib.ExitStack() as bound:
        listeners = {option: _bind(option, where, options, bound) for option, where in options.listeners().items()}
        check_apart([
            (f"{option} {_address(each)}", each.getsockname()[:2]) for option, some in listeners.items() for each in some
        ])  # fmt: skip
        http_listeners, https_listeners = listeners.get("--http", []), listeners.get("--https", [])
        url = f"toymq://{_address(listeners['--listen'][0])}"
        with _tracer(options, clock) as tracer, opened_broker(options, clock, loop, tracer, url) as broker:
            for change in await apply_definitions(openable(wanted, broker), broker):
                logger.info("%s: %s", options.definitions, change)
            gc.collect()
            gc.freeze()  # recovered objects live long: exempt them from garbage collection
            trimmer = heap_trimming.HeapTrimmer(loop)
            watch = MemoryWatch(loop, broker.quotas, options.memory_max_bytes, on_disconnects=trimmer.look)
            bound.callback(watch.stop)
            watch.look()
            server = Server(broker, clock, loop, authority=authority, certificates=certificates)
            _reload_on_hangup(loop, reloads, server.debug_wire)
            addresses = [READY_AS[option].format(_address(each)) for option, some in listeners.items() for each in some]

            def accepting() -> None:
                loop.call_soon(ready, addresses)

            web = _http_server(options, broker, clock, loop, authority, certificates, http_listeners, accepting)
            _listen(listeners)
            _handle_signals(loop, server, web)
            broker.on_lost = partial(_stop_at_once, server, web)
            with _metrics(broker, loop, listeners.get("--metrics", []), options.allowed_host):
                async with asyncio.TaskGroup() as tasks:
                    if web is not None:
                        tasks.create_task(web.run(http_listeners, https_listeners))
                    else:
                        accepting()
                    await server.run(listeners["--listen"], listeners.get("--tls-listen", []))
            if broker.lost is not None:
                raise broker.lost


def _http_server(
    options: ServeOptions,
    broker: Broker,
    clock: Clock,
    loop: asyncio.AbstractEventLoop,
    authority: Authority | None,
    certificates: Certificates | None,
    listeners: list[socket.socket],
    started: Callable[[], None],
) -> "HttpServer | None":
    """Raises: ConfigError without the extra."""
    if options.http is None and options.https is None:
        return None
    try:
        from toymq_py.gateway import HttpServer
    except ModuleNotFoundError as error:
        raise ConfigError(f"{'--http' if listeners else '--https'} needs {error.name}: {install_hint('http')}") from None
    return HttpServer(
        broker, clock, loop,
        local=not any(is_public(listener.getsockname()[0]) for listener in listeners),
        started=started,
        authority=authority,
        certificates=certificates,
        dialects=options.dialect,
        private_webhooks=options.private_webhooks,
        mq_delay_s=options.mq_delay_ms / 1000,
        allowed_hosts=options.allowed_host,
    )  # fmt: skip


def _bind(option: str, address: str, options: ServeOptions, bound: contextlib.ExitStack) -> list[socket.socket]:
    """Bind sockets, which ``bound`` closes, and warn about exposed ones. They do not accept yet.

    Raises: ConfigError, DataDirectoryError.
    """
    try:
        listeners = Server.bind(*parse_address(address))
    except OSError as error:
        raise DataDirectoryError(f"{option}: cannot listen on {address}: {error.strerror or error}") from error
    for listener in listeners:
        bound.callback(listener.close)
    if any(options.check_exposure(option, listener.getsockname()[0]) for listener in listeners):
        if option == "--metrics":
            logger.warning("%s %s: other machines can read the names of topics and consumers", option, address)
        elif options.auth_file is None:
            logger.warning("%s %s: other machines may do everything (--insecure-public)", option, address)
        elif (instead := IN_THE_CLEAR.get(option)) is not None:
            logger.warning("%s %s: tokens and messages cross the network in the clear; %s does not", option, address, instead)
    return listeners


def _listen(listeners: Mapping[str, Sequence[socket.socket]]) -> None:
    """Claim the addresses, before the broker says that it is ready. Until a socket listens, another process may bind its
    address and listen first (SO_REUSEADDR, which a restart needs).

    Raises: DataDirectoryError.
    """
    for option, some in listeners.items():
        for listener in some:
            try:
                listener.listen(BACKLOG)
            except OSError as error:
                raise DataDirectoryError(f"{option}: cannot listen on {_address(listener)}: {error.strerror}") from error


@contextlib.contextmanager
def _metrics(
    broker: Broker, loop: asyncio.AbstractEventLoop, listeners: list[socket.socket], allowed_hosts: Sequence[str]
) -> Iterator[None]:
    """Serve ``/metrics`` on the listeners, if there are any."""
    if not listeners:
        yield
        return
    from toymq_py.observability.metrics_server import MetricsServer  # imported only when needed

    listener = MetricsServer(broker, loop, listeners, AllowedHosts(allowed_hosts))
    listener.start()
    try:
        yield
    finally:
        listener.stop()


@contextlib.contextmanager
def _tracer(options: ServeOptions, clock: Clock) -> Iterator[Tracer | None]:
    """Raises: ConfigError, when the extra is not installed."""
    if options.otlp_endpoint is None:
        yield None
        return
    try:
        from toymq_py.observability.tracing import opened_tracer
    except ModuleNotFoundError as error:
        raise ConfigError(f"--otlp-endpoint needs {error.name}: {install_hint('observability')}") from error
    with opened_tracer(options.otlp_endpoint, clock, fsync=options.fsync) as tracer:
        yield tracer


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _handle_signals(loop: asyncio.AbstractEventLoop, server: Server, web: "HttpServer | None") -> None:
    def stop() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)  # a second signal exits at once
        server.stop()
        if web is not None:
            web.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def _stop_at_once(server: Server, web: "HttpServer | None") -> None:
    server.stop(at_once=True)
    if web is not None:
        web.stop()


def _reload_on_hangup(
    loop: asyncio.AbstractEventLoop, reloads: Mapping[str, Callable[[], None]], done: Callable[[], None]
) -> None:
    """Read files again at SIGHUP; a bad one changes nothing. Without files SIGHUP ends the process, as usual."""

    def reload() -> None:
        for what, read in reloads.items():
            try:
                read()
                logger.info("the %s were read again", what)
            except ConfigError as error:
                logger.error("%s; the %s that were read before stay", error, what)  # noqa: TRY400 (no bug of ours)
        done()

    if reloads:
        loop.add_signal_handler(signal.SIGHUP, reload)


def room_for_connections(max_connections: int) -> int:
    """Raise the soft descriptor limit to the hard one. Returns: how many connections leave the files their descriptors, at most
    ``max_connections``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    room = max(soft - DESCRIPTORS_SPARE, soft // 2)
    if soft == resource.RLIM_INFINITY or room >= max_connections:
        return max_connections
    logger.warning("%d descriptors are allowed: %d connections, fewer than --max-connections %d", soft, room, max_connections)
    return room
