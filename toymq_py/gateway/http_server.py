"""The HTTP server: uvicorn on the broker's own loop, with and without TLS.

Contract: gateway.md; ADR 0024, ADR 0078 (which uvicorn).
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import uvicorn

from toymq_py.auth.quotas import Quotas
from toymq_py.auth.tokens import Authority
from toymq_py.broker import Broker
from toymq_py.clock import Clock
from toymq_py.errors import BadFraming
from toymq_py.gateway.app import Application
from toymq_py.gateway.bodies import JSON_BYTES_MAX
from toymq_py.gateway.http_protocol import KEEP_ALIVE_S, GatewayProtocol
from toymq_py.gateway.problems import HEADERS, encode_response, problem
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.tls_listener import TlsListener
from toymq_py.gateway.webhook_pusher import WebhookPusher
from toymq_py.gateway.websocket_protocol import GatewayWebSocket
from toymq_py.net.acceptor import BACKLOG
from toymq_py.net.certificates import Certificates
from toymq_py.net.fair_queue import FairQueue
from toymq_py.net.host_names import AllowedHosts


class _Server(uvicorn.Server):
    """Uvicorn's server with listeners for TLS, and without signal handlers, which are the daemon's."""

    def __init__(
        self, config: uvicorn.Config, started_: Callable[[], None], certificates: Certificates | None, quotas: Quotas
    ) -> None:
        super().__init__(config)
        self._tell_started = started_
        self._leaving = asyncio.Event()
        self._certificates = certificates
        self._quotas = quotas

    async def serve_all(self, listeners: list[socket.socket], tls_listeners: Sequence[socket.socket]) -> None:
        """Serve both; uvicorn gets connections over TLS after the handshake."""
        async with asyncio.TaskGroup() as tasks:
            self._tls = [self._tls_listener(listener, tasks) for listener in tls_listeners]
            await self.serve(listeners)

    def _tls_listener(self, listener: socket.socket, tasks: asyncio.TaskGroup) -> TlsListener:
        assert self._certificates is not None
        state, config = self.server_state, self.config

        def connected(shaken: Callable[[], None]) -> asyncio.Protocol:
            protocol = config.http_protocol_class(config=config, server_state=state, app_state=self.lifespan.state)  # type: ignore[call-arg]
            cast("GatewayProtocol", protocol).handshake_done = shaken
            return protocol

        refusal = encode_response(problem(BadFraming("this port expects TLS: use https://")))
        return TlsListener(
            listener, asyncio.get_running_loop(), tasks, self._certificates,
            connected=connected,
            quotas=self._quotas,
            refusal=refusal,
        )  # fmt: skip

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in self._tls:
            listener.start()
        self._tell_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in self._tls:
            listener.stop()
        await super().shutdown(sockets)

    async def main_loop(self) -> None:
        """Tick once a second, for the ``Date`` header, where uvicorn ticks ten times; and end at once."""
        while not self.should_exit:
            await self.on_tick(0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._leaving.wait()

    def leave(self) -> None:
        self.should_exit = True
        self._leaving.set()


class HttpServer:
    """Serves one broker's gateway. ``run`` until ``stop``. Belongs to the loop."""

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        local: bool,
        started: Callable[[], None],
        authority: Authority | None = None,
        certificates: Certificates | None = None,
        dialects: Sequence[str] = (),
        private_webhooks: bool = False,
        mq_delay_s: float = 10.0,
        allowed_hosts: Sequence[str] = (),
    ) -> None:
        """
        Args:
            allowed_hosts: names accepted in ``Host`` beside ``localhost`` and addresses. Checked without TLS when there are no
                tokens or the broker listens on the loopback only.
            authority: checks tokens and rights; None allows everything.
            certificates: for the listeners with TLS.
            dialects: ``tinymq``, ``mq``.
            private_webhooks: webhooks may push to this machine and its network.
            mq_delay_s: visibility timeout of the dialect ``mq``.
            local: the listeners without TLS are on the loopback.
            started: called once connections are accepted.
        """
        options = broker.options
        self._gateway = Gateway(
            broker, clock, loop, authority=authority, private_webhooks=private_webhooks, mq_delay_s=mq_delay_s
        )
        if authority is not None:
            broker.quotas.guarded = True
        hosts = AllowedHosts(allowed_hosts) if local or authority is None else None
        shared = {"quotas": broker.quotas, "clock": clock, "fair_queue": FairQueue(clock, loop)}
        limited = type("LimitedProtocol", (GatewayProtocol,), shared)
        config = uvicorn.Config(
            Application(self._gateway, hosts=hosts, dialects=dialects),
            http=limited,
            ws=GatewayWebSocket,
            ws_max_size=2 * options.max_payload_bytes + JSON_BYTES_MAX,  # a payload as base64, and the other members
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            log_level="error",  # a hostile client must not fill the log
            access_log=False,
            proxy_headers=False,
            server_header=False,
            headers=HEADERS,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(options.shutdown_timeout_ms / 1000)),
        )
        self._server = _Server(config, started, certificates, broker.quotas)

    @property
    def webhooks(self) -> WebhookPusher:
        """The webhooks; they push while ``run`` lasts."""
        return self._gateway.webhooks

    async def run(self, listeners: list[socket.socket], tls_listeners: Sequence[socket.socket] = ()) -> None:
        """Accept and serve until ``stop``; then answer what was asked, within the shutdown timeout."""
        async with asyncio.TaskGroup() as tasks:
            pushing = tasks.create_task(self._gateway.webhooks.run())
            await self._server.serve_all(listeners, tls_listeners)
            pushing.cancel()

    def stop(self) -> None:
        """Begin the shutdown. Idempotent."""
        self._gateway.waiting.stop()
        self._server.leave()
