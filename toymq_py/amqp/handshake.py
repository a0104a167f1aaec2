"""The handshake of an AMQP connection: login, limits, virtual host. Does no I/O.

Contract: amqp.md, "Model" (users); the specification, 2.2.4.
"""

import asyncio

from toymq_py.amqp import frames, methods
from toymq_py.amqp.errors import ACCESS_REFUSED, COMMAND_INVALID, NOT_ALLOWED, SYNTAX_ERROR, AmqpError
from toymq_py.amqp.login import Login, OpenRights
from toymq_py.amqp.methods import Method
from toymq_py.amqp.vhosts import Vhosts
from toymq_py.errors import AuthFailed
from toymq_py.net.certificates import names_of
from toymq_py.net.open_connections import NAME_CHARS_MAX
from toymq_py.version import __version__

CHANNEL_MAX = 2047
FRAME_MAX = 131_072
HEARTBEAT_S = 60
PROPERTIES = {
    "product": "toymq", "version": __version__, "platform": "Python", "information": "AMQP 0-9-1 of a toymq broker",
    "capabilities": {
        "publisher_confirms": True, "exchange_exchange_bindings": True, "basic.nack": True, "consumer_cancel_notify": True,
        "per_consumer_qos": True, "authentication_failure_close": True, "connection.blocked": True,
    },
}  # fmt: skip


class Handshake:
    """Negotiates a connection, and keeps what both ends agreed on. ``apply`` returns the frame that answers a method."""

    def __init__(self, login: Login, address: str | None, vhosts: Vhosts) -> None:
        self.queues = vhosts.default
        """The queues of the virtual host that the client opens."""
        self._vhosts = vhosts
        self.client_name: str | None = None
        """The connection's name in the client's properties, else the name of the library."""
        self.knows_cancels = False
        """Whether the client has the capability ``consumer_cancel_notify``."""
        self.knows_blocked = False
        """Whether the client has the capability ``connection.blocked``."""
        self.rights = OpenRights()
        self.frame_max = frames.FRAME_MIN
        self.channel_max = CHANNEL_MAX
        self.heartbeat_s = 0
        self._login = login
        self._address = address
        self._certificate_names: tuple[str, ...] | None = None
        self._expects = "connection.start-ok"

    @property
    def is_over(self) -> bool:
        """Whether the handshake is over and the connection is open."""
        return self._expects == "connection.update-secret"

    def begin(self, transport: asyncio.BaseTransport) -> bytes:
        """The first frame, once the client has sent the protocol header."""
        certificate = transport.get_extra_info("peercert")
        self._certificate_names = None if certificate is None else names_of(certificate)
        return methods.encode(
            0, "connection.start", version_major=0, version_minor=9, server_properties=PROPERTIES,
            mechanisms=self._login.mechanisms(self._certificate_names), locales="en_US",
        )  # fmt: skip

    def apply(self, method: Method) -> bytes:
        """Answer a method of the client. Raises: AmqpError."""
        if method.name != self._expects:
            raise AmqpError(COMMAND_INVALID, f"{method.name} was not expected now", method.index)
        return _HANDLERS[method.name](self, method)

    def _start_ok(self, method: Method) -> bytes:
        try:
            self.rights = self._login.log_in(
                method["mechanism"], method["response"], self._certificate_names, self._address
            )
        except ValueError as error:
            raise AmqpError(SYNTAX_ERROR, str(error), method.index) from None
        except AuthFailed as error:
            raise _refused(error, method) from None
        told = [method["client_properties"].get(name) for name in ("connection_name", "product")]
        self.client_name = next((name[:NAME_CHARS_MAX] for name in told if isinstance(name, str)), None)
        capabilities = method["client_properties"].get("capabilities")
        if isinstance(capabilities, dict):
            self.knows_cancels = capabilities.get("consumer_cancel_notify") is True
            self.knows_blocked = capabilities.get("connection.blocked") is True
        self._expects = "connection.tune-ok"
        return methods.encode(0, "connection.tune", channel_max=CHANNEL_MAX, frame_max=FRAME_MAX, heartbeat=HEARTBEAT_S)

    def _tune_ok(self, method: Method) -> bytes:
        frame_max, channel_max = method["frame_max"] or FRAME_MAX, method["channel_max"] or CHANNEL_MAX
        if not frames.FRAME_MIN <= frame_max <= FRAME_MAX or channel_max > CHANNEL_MAX:
            text = f"frame_max {frame_max}, channel_max {channel_max}: {frames.FRAME_MIN} to {FRAME_MAX}, up to {CHANNEL_MAX}"
            raise AmqpError(NOT_ALLOWED, text, method.index)
        self.frame_max, self.channel_max, self.heartbeat_s = frame_max, channel_max, method["heartbeat"]
        self._expects = "connection.open"
        return b""

    def _open(self, method: Method) -> bytes:
        self.queues = self._vhosts.find(method["virtual_host"])
        self._expects = "connection.update-secret"
        return methods.encode(0, "connection.open-ok")

    def _update_secret(self, method: Method) -> bytes:
        try:
            self.rights = self._login.rights_of(method["new_secret"].decode("utf-8", "replace"), self._address)
        except AuthFailed as error:
            raise _refused(error, method) from None
        return methods.encode(0, "connection.update-secret-ok")


_HANDLERS = {
    "connection.start-ok": Handshake._start_ok, "connection.tune-ok": Handshake._tune_ok, "connection.open": Handshake._open,
    "connection.update-secret": Handshake._update_secret,
}  # fmt: skip


def _refused(error: AuthFailed, method: Method) -> AmqpError:
    return AmqpError(ACCESS_REFUSED, f"login was refused: {error}", method.index)
