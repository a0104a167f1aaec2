"""The HTTP server: listeners on the broker's own event loop, with and without TLS, and their graceful shutdown.

Contract: gateway.md; ADR 0024, ADR 0094.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from toymq_py.auth.tokens import Authority
from toymq_py.broker import Broker
from toymq_py.clock import Clock
from toymq_py.entrance import Entrance
from toymq_py.errors import BadFraming
from toymq_py.gateway.alert_watch import AlertWatch
from toymq_py.gateway.answers import encode_last
from toymq_py.gateway.app import Application
from toymq_py.gateway.group_errands import GroupErrands
from toymq_py.gateway.http_protocol import GatewayProtocol
from toymq_py.gateway.problems import problem
from toymq_py.gateway.publish_operations import line_bytes_max
from toymq_py.gateway.request_context import Amqp, Gateway
from toymq_py.gateway.serving import Serving
from toymq_py.gateway.tls_listener import TlsListener
from toymq_py.gateway.webhook_pusher import WebhookPusher
from toymq_py.net.bounded_reads import BoundedProtocol
from toymq_py.net.certificates import Certificates, certified
from toymq_py.net.host_names import AllowedHosts

logger = logging.getLogger("toymq_py.gateway")


class HttpServer:
    """Serves one broker's gateway: ``run`` serves until ``stop``. Belongs to the event loop."""

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
            allowed_hosts: names accepted in ``Host`` beside ``localhost``, addresses and the names of the certificate. Checked
                when there are no tokens; with them, without TLS, when the broker listens on the loopback only.
            authority: checks tokens and rights; None allows everything.
            certificates: for the listeners with TLS.
            dialects: ``tinymq``, ``mq``.
            private_webhooks: webhooks and alerts may be sent to this machine and its network.
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
        hosts = AllowedHosts(allowed_hosts, certified(certificates)) if local or authority is None else None
        self._serving = Serving(
            Application(self._gateway, hosts=hosts, dialects=dialects), loop, clock, broker.quotas,
            frame_bytes_max=line_bytes_max(options.max_payload_bytes),
        )  # fmt: skip
        self._entrance = Entrance(loop, broker.quotas, broker.metrics, None, lambda _: GatewayProtocol(self._serving))
        self._loop = loop
        self._started = started
        self._certificates = certificates
        self._shutdown_timeout_s = options.shutdown_timeout_ms / 1000
        self._leaving = asyncio.Event()

    def asks(self, errands: GroupErrands | None) -> None:
        """Set the object that asks all groups of a cluster, so that the topics of all are shown. None: there are no groups."""
        self._gateway.errands = errands
        if errands is not None:
            self._gateway.snapshots.elsewhere.ask = errands.stats_of

    def shows(self, amqp: Amqp) -> None:
        """Set the AMQP server whose declarations are listed."""
        self._gateway.amqp = amqp

    @property
    def webhooks(self) -> WebhookPusher:
        """The webhooks; they push while ``run`` lasts."""
        return self._gateway.webhooks

    @property
    def alerts(self) -> AlertWatch:
        """The alerts; they are evaluated while ``run`` lasts."""
        return self._gateway.alerts

    async def run(self, listeners: Sequence[socket.socket], tls_listeners: Sequence[socket.socket] = ()) -> None:
        """Accept and serve until ``stop``; then answer the requests that have begun, within the shutdown timeout."""
        async with asyncio.TaskGroup() as tasks:
            parts = (self._gateway.webhooks, self._gateway.alerts, self._gateway.history)
            beside = [tasks.create_task(part.run()) for part in parts]
            tls = [self._tls_listener(listener, tasks) for listener in tls_listeners]
            self._entrance.open(listeners, (), tasks)
            for listener in tls:
                listener.start()
            self._started()
            while not self._leaving.is_set():
                self._serving.tick()
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self._leaving.wait()
            for listener in tls:
                listener.stop()
            self._entrance.close()
            late = await self._serving.shut_down(self._shutdown_timeout_s)
            if late:
                logger.error("%d HTTP connections were cut: their requests took longer than the shutdown may", late)
            for task in beside:
                task.cancel()

    def _tls_listener(self, listener: socket.socket, tasks: asyncio.TaskGroup) -> TlsListener:
        """Make a TLS listener, which hands its connections over after the handshake."""
        assert self._certificates is not None

        def connected(shaken: Callable[[], None]) -> BoundedProtocol:
            protocol = GatewayProtocol(self._serving)
            protocol.handshake_done = shaken
            return protocol

        refusal = problem(BadFraming("this port expects TLS: use https://"))
        return TlsListener(
            listener, self._loop, tasks, self._certificates,
            connected=connected,
            quotas=self._serving.quotas,
            refusal=encode_last(refusal.status_code, refusal.raw_headers, bytes(refusal.body)),
        )  # fmt: skip

    def stop(self, *, within_s: float | None = None) -> None:
        """Begin the shutdown. Idempotent. ``within_s``: a shorter limit than the shutdown timeout."""
        if within_s is not None:
            self._shutdown_timeout_s = min(self._shutdown_timeout_s, within_s)
        self._gateway.waiting.stop()
        self._leaving.set()

    def cut(self) -> None:
        """Close all connections now, whatever they wait for. Nothing more is sent to any client."""
        self._serving.cut()
