"""The broker process: event loop, memory, descriptors, servers, signals. Only this and `toymq worker` use uvloop."""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop

from toymq_py.auth.tokens import Authority
from toymq_py.broker import ALONE, Broker
from toymq_py.clock import Clock, SystemClock
from toymq_py.command_line import needs
from toymq_py.config.definitions import Definitions
from toymq_py.config.option_schema import check_apart, is_public, parse_address
from toymq_py.config.options import ServeOptions
from toymq_py.errors import ConfigError, DamagedData, DataDirectoryError
from toymq_py.net.acceptor import BACKLOG
from toymq_py.net.certificates import Certificates, certified
from toymq_py.net.host_names import AllowedHosts
from toymq_py.option_files import Files, read_files
from toymq_py.placement import Placement
from toymq_py.runtime import heap_trimming
from toymq_py.runtime.broker_loop import opened_broker
from toymq_py.runtime.definitions import apply_definitions, openable
from toymq_py.runtime.memory_watch import MemoryWatch
from toymq_py.server import Server, cannot_listen
from toymq_py.topic import Tracer

if TYPE_CHECKING:
    from toymq_py.amqp import AmqpServer
    from toymq_py.gateway import HttpServer

logger = logging.getLogger("toymq_py.daemon")

T = TypeVar("T")

DESCRIPTORS_SPARE = 256
"""Reserved for segments and directories, so that connections cannot use up all descriptors."""

READY_AS = {
    "--listen": "{}", "--http": "http://{}/", "--https": "https://{}/", "--tls-listen": "toymqs://{}",
    "--metrics": "http://{}/metrics", "--replicate": "replica://{}", "--amqp": "amqp://{}", "--amqps": "amqps://{}",
}  # fmt: skip
"""The form of each listener's address in the line that says ready."""
Listeners = Mapping[str, list[socket.socket]]
"""Bound sockets by their option."""
IN_THE_CLEAR = {"--listen": "--tls-listen", "--http": "--https", "--amqp": "--amqps"}
"""Listeners without TLS, and the one with TLS."""


@dataclass(frozen=True, slots=True)
class OfWorker:
    """What ``serve`` needs in addition in a worker process, which serves a part of the topics."""

    listeners: Listeners
    """The sockets that the supervisor has bound, and keeps while the process is replaced."""
    placement: Placement
    lives: int
    """A descriptor that becomes readable when the supervisor has died; then the process ends."""


def serve(
    options: ServeOptions, ready: Callable[[list[str]], None], reloads: Mapping[str, Callable[[], None]],
    of_worker: OfWorker | None = None,
) -> None:  # fmt: skip
    """Run a broker until SIGTERM or SIGINT; a second signal ends the process at once. SIGHUP reads tokens and
    certificates again.

    Args:
        ready: called with the addresses, ``host:port``, ``toymqs://host:port``, those of HTTP and of the metrics, once
            connections are accepted.
        reloads: functions that read further files at SIGHUP, by the names for the log; each may raise ConfigError.

    Raises: ConfigError, DirectoryLocked, DataDirectoryError.
    """
    files = read_files(options)
    options = prepared(options)
    run(_serve(options, files, ready, reloads, of_worker))


def prepared(options: ServeOptions) -> ServeOptions:
    """Set up the process. Returns: the options, with ``max_connections`` reduced to what the limit of descriptors allows."""
    heap_trimming.set_up()
    room = room_for_connections(options.max_connections)
    if room == options.max_connections:
        return options
    return replace(options, max_connections=room, sources={**options.sources, "max_connections": "limit of descriptors"})


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a new event loop. Returns: its result."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


async def _serve(
    options: ServeOptions, files: Files, ready: Callable[[list[str]], None], reloads: Mapping[str, Callable[[], None]],
    of_worker: OfWorker | None,
) -> None:  # fmt: skip
    loop, clock = asyncio.get_running_loop(), SystemClock()
    reloads = {**reloads, **files.reloads(options)}
    with contextlib.ExitStack() as bound:
        listeners = bind_all(options, options.listeners(), bound) if of_worker is None else of_worker.listeners
        url = f"toymq://{shown_address(listeners['--listen'][0])}"
        placement = ALONE if of_worker is None else of_worker.placement
        tracer = bound.enter_context(opened_tracer(options, clock))
        with opened_broker(options, clock, loop, tracer, url, placement=placement) as broker:
            service = Service(options, broker, clock, loop, files.authority, files.certificates, listeners, ready)
            await service.prepare(files.definitions)
            reload_on_hangup(loop, reloads, service.debug_wire)
            claim(listeners)
            handle_signals(loop, service.stop)
            if of_worker is not None:
                _end_with_supervisor(loop, of_worker.lives, service.stop)
            await service.run()


class Service:
    """The listeners and tasks that serve the clients of one opened broker. After ``prepare``, ``run`` serves until ``stop``."""

    def __init__(
        self, options: ServeOptions, broker: Broker, clock: Clock, loop: asyncio.AbstractEventLoop, authority: Authority | None,
        certificates: Certificates | None, listeners: Listeners, ready: Callable[[list[str]], None],
    ) -> None:  # fmt: skip
        """
        Args:
            listeners: bound sockets, which must listen before ``run``.
            ready: as for ``serve``.
        """
        self._options = options
        self._broker = broker
        self._listeners = listeners
        self._server = Server(broker, clock, loop, authority=authority, certificates=certificates)
        self.passed = self._server.passed
        self.errands = self._server.errands() if options.trusts_nodes else None
        self._ready = ready
        self._clock, self._loop = clock, loop
        self._authority = authority
        self._certificates = certificates
        self._hosts = AllowedHosts(options.allowed_host, certified(certificates))
        self._web: HttpServer | None = None
        self._amqp: AmqpServer | None = None

    async def prepare(self, wanted: Definitions) -> None:
        """Apply the definitions before clients can connect; then make the gateway, which reads its webhooks.

        Raises: ConfigError, also when an extra is missing; DataDirectoryError, when the file of AMQP declarations is damaged.
        """
        for change in await apply_definitions(openable(wanted, self._broker), self._broker):
            logger.info("%s: %s", self._options.definitions, change)
        self._web = _http_server(
            self._options, self._broker, self._clock, self._loop, self._authority, self._certificates,
            self._listeners.get("--http", []), self._accepting,
        )  # fmt: skip
        if self._web is None:
            self._warn_of_idle()
        else:
            self._web.asks(self.errands)
        if self._options.amqp is not None or self._options.amqps is not None:
            from toymq_py.amqp import AmqpServer  # imported only when needed
            self._amqp = AmqpServer(
                self._broker, self._clock, self._loop, authority=self._authority, certificates=self._certificates,
                vhosts=self._options.amqp_vhost,
            )  # fmt: skip
            await self._amqp.prepare(wanted.amqp.values(), self._options.definitions)
            if self._web is not None:
                self._web.shows(self._amqp)
        gc.collect()
        gc.freeze()  # recovered objects live long: exempt them from garbage collection

    def _warn_of_idle(self) -> None:
        """Warn about stored webhooks and alerts, which do nothing without a gateway. `toymq verify` reports damaged files."""
        for what, read in (("webhooks", self._broker.directory.read_webhooks), ("alerts", self._broker.directory.read_alerts)):
            with contextlib.suppress(DamagedData, OSError):
                if count := len(read()):
                    logger.warning("%d %s are defined and do nothing: they need --http or --https", count, what)

    def _accepting(self) -> None:
        self._broker.gateways = [
            READY_AS[option].format(shown_address(each)) for option in ("--https", "--http")
            for each in self._listeners.get(option, ()) if each.family != socket.AF_UNIX
        ]  # fmt: skip
        addresses = [
            READY_AS[option].format(shown_address(each))
            for option, some in self._listeners.items() for each in some if each.family != socket.AF_UNIX
        ]  # fmt: skip
        self._loop.call_soon(self._ready, addresses)

    async def run(self) -> None:
        """Accept and serve until ``stop``. Raises: DirectoryLost."""
        broker, listeners = self._broker, self._listeners
        trimmer = heap_trimming.HeapTrimmer(self._loop)
        watch = MemoryWatch(self._loop, broker.quotas, self._options.memory_max_bytes, on_disconnects=trimmer.look)
        watch.look()
        broker.on_lost = self._stop_at_once
        try:
            with (
                _metrics(broker, self._loop, listeners.get("--metrics", []), self._hosts),
                _tiered(self._options, broker, self._loop),
            ):
                async with asyncio.TaskGroup() as tasks:
                    if self._amqp is not None:
                        tasks.create_task(self._amqp.run(listeners.get("--amqp", []), listeners.get("--amqps", [])))
                    if self._web is not None:
                        tasks.create_task(self._web.run(listeners.get("--http", []), listeners.get("--https", [])))
                    else:
                        self._accepting()
                    await self._server.run(listeners["--listen"], listeners.get("--tls-listen", []))
        finally:
            watch.stop()
        if broker.lost is not None:
            raise broker.lost

    def debug_wire(self) -> None:
        """Apply a changed level of the logger ``toymq_py.wire``."""
        self._server.debug_wire()

    def stop(self, within_s: float | None = None) -> None:
        """Begin the shutdown; ``within_s``: as for ``Server.stop``. Idempotent."""
        self._server.stop(within_s=within_s)
        if self._web is not None:
            self._web.stop(within_s=within_s)
        if self._amqp is not None:
            self._amqp.stop(within_s=within_s)

    def cut(self) -> None:
        """Close all connections now, without an answer to any client."""
        self._server.cut()
        if self._web is not None:
            self._web.cut()
        if self._amqp is not None:
            self._amqp.cut()
        self._stop_at_once()

    def _stop_at_once(self) -> None:
        self._server.stop(at_once=True)
        if self._web is not None:
            self._web.stop()
        if self._amqp is not None:
            self._amqp.stop()


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
    """Make the HTTP server; None without --http and --https. Raises: ConfigError without the extra."""
    if options.http is None and options.https is None:
        return None
    try:
        from toymq_py.gateway import HttpServer
    except ModuleNotFoundError as error:
        raise ConfigError(f"{'--http' if options.http else '--https'} {needs(error, 'http')}") from None
    return HttpServer(
        broker, clock, loop,
        local=not any(is_public(each.getsockname()[0]) for each in listeners if each.family != socket.AF_UNIX),
        started=started,
        authority=authority,
        certificates=certificates,
        dialects=options.dialect,
        private_webhooks=options.private_webhooks,
        mq_delay_s=options.mq_delay_ms / 1000,
        allowed_hosts=options.allowed_host,
    )  # fmt: skip


def bind_all(options: ServeOptions, addresses: Mapping[str, str], bound: contextlib.ExitStack) -> Listeners:
    """Bind the sockets of all listeners, by option (``_bind``). Raises: ConfigError, DataDirectoryError."""
    listeners = {option: _bind(option, where, options, bound) for option, where in addresses.items()}
    check_apart([
        (f"{option} {shown_address(each)}", each.getsockname()[:2]) for option, some in listeners.items() for each in some
    ])  # fmt: skip
    return listeners


def _bind(option: str, address: str, options: ServeOptions, bound: contextlib.ExitStack) -> list[socket.socket]:
    """Bind the sockets of one listener, and warn if they are exposed. ``bound`` closes them. They do not listen yet.

    Raises: ConfigError, DataDirectoryError.
    """
    try:
        listeners = Server.bind(*parse_address(address))
    except OSError as error:
        raise DataDirectoryError(cannot_listen(option, address, error)) from error
    for listener in listeners:
        bound.callback(listener.close)
    if any(options.check_exposure(option, listener.getsockname()[0]) for listener in listeners):
        if option == "--metrics":
            logger.warning("%s %s: other machines can read the names of topics and consumers", option, address)
        elif option == "--replicate":
            if options.replicate_cert is None:
                logger.warning("%s %s: all messages cross the network in the clear (--replicate-plaintext)", option, address)
        elif options.auth_file is None:
            logger.warning("%s %s: other machines may do everything (--insecure-public)", option, address)
        elif (instead := IN_THE_CLEAR.get(option)) is not None:
            logger.warning("%s %s: tokens and messages cross the network in the clear; %s does not", option, address, instead)
    return listeners


def claim(listeners: Listeners) -> None:
    """Listen on the addresses before the broker says that it is ready. Until a socket listens, another process may bind its
    address and listen first (SO_REUSEADDR, which a restart needs, allows that).

    Raises: DataDirectoryError.
    """
    for option, some in listeners.items():
        for listener in some:
            try:
                listener.listen(BACKLOG)
            except OSError as error:
                raise DataDirectoryError(cannot_listen(option, shown_address(listener), error)) from error


@contextlib.contextmanager
def _metrics(
    broker: Broker, loop: asyncio.AbstractEventLoop, listeners: list[socket.socket], hosts: AllowedHosts
) -> Iterator[None]:
    """Serve ``/metrics`` on the listeners, if there are any, while this context lasts."""
    if not listeners:
        yield
        return
    from toymq_py.observability.metrics_server import MetricsServer, broker_pages  # imported only when needed

    listener = MetricsServer(broker_pages(broker), loop, listeners, hosts)
    listener.start()
    try:
        yield
    finally:
        listener.stop()


def _tiered(options: ServeOptions, broker: Broker, loop: asyncio.AbstractEventLoop) -> contextlib.AbstractContextManager[None]:
    """A context in which the bucket of --tier is kept up to date. Raises: ConfigError."""
    if options.tier is None:
        return contextlib.nullcontext()
    from toymq_py.runtime.tier_thread import tiered  # imported only when needed

    return tiered(options.tier, broker, loop, options.tier_cache_bytes, options.tier_local_max_bytes)


@contextlib.contextmanager
def opened_tracer(options: ServeOptions, clock: Clock) -> Iterator[Tracer | None]:
    """Make a tracer for the duration of this context. Raises: ConfigError, when the extra is not installed."""
    if options.otlp_endpoint is None:
        yield None
        return
    try:
        from toymq_py.observability import tracing
    except ModuleNotFoundError as error:
        raise ConfigError(f"--otlp-endpoint {needs(error, 'observability')}") from error
    with tracing.opened_tracer(options.otlp_endpoint, clock, fsync=options.fsync) as tracer:
        yield tracer


def shown_address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _end_with_supervisor(loop: asyncio.AbstractEventLoop, lives: int, stop: Callable[[], None]) -> None:
    """Stop when the supervisor has died, so that a new supervisor finds directories and addresses free."""

    def orphaned() -> None:
        loop.remove_reader(lives)
        logger.error("the supervisor has died: this worker ends")
        stop()

    loop.add_reader(lives, orphaned)


def handle_signals(loop: asyncio.AbstractEventLoop, begin: Callable[[], object]) -> None:
    """Call ``begin`` at SIGTERM and SIGINT; a second one ends the process at once."""

    def stop() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        begin()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def reload_on_hangup(
    loop: asyncio.AbstractEventLoop, reloads: Mapping[str, Callable[[], None]], done: Callable[[], None]
) -> None:
    """Read files again at SIGHUP; an invalid file changes nothing. Without ``reloads`` SIGHUP ends the process, as usual."""

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
    """Raise the soft limit of descriptors to the hard one. Returns: how many connections it allows beside the descriptors that
    files need; at most ``max_connections``."""
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
