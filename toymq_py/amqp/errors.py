"""Errors of AMQP 0-9-1: a reply code that closes a channel or the connection. Contract: amqp.md; the specification, 1.2."""

from toymq_py.disk_errors import storage_error
from toymq_py.errors import RequestError

CONTENT_TOO_LARGE, NO_ROUTE = 311, 312
ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, PRECONDITION_FAILED = 403, 404, 405, 406
CONNECTION_FORCED = 320
FRAME_ERROR, SYNTAX_ERROR, COMMAND_INVALID, CHANNEL_ERROR, UNEXPECTED_FRAME = 501, 502, 503, 504, 505
RESOURCE_ERROR, NOT_ALLOWED, NOT_IMPLEMENTED, INTERNAL_ERROR = 506, 530, 540, 541

NAMES = {
    CONNECTION_FORCED: "CONNECTION_FORCED", ACCESS_REFUSED: "ACCESS_REFUSED",
    NOT_FOUND: "NOT_FOUND", RESOURCE_LOCKED: "RESOURCE_LOCKED", PRECONDITION_FAILED: "PRECONDITION_FAILED",
    FRAME_ERROR: "FRAME_ERROR", SYNTAX_ERROR: "SYNTAX_ERROR", COMMAND_INVALID: "COMMAND_INVALID",
    CHANNEL_ERROR: "CHANNEL_ERROR", UNEXPECTED_FRAME: "UNEXPECTED_FRAME", RESOURCE_ERROR: "RESOURCE_ERROR",
    NOT_ALLOWED: "NOT_ALLOWED", NOT_IMPLEMENTED: "NOT_IMPLEMENTED", INTERNAL_ERROR: "INTERNAL_ERROR",
    CONTENT_TOO_LARGE: "CONTENT_TOO_LARGE",
}  # fmt: skip
"""RabbitMQ's reply texts begin with these words, and clients match them."""

HARD = frozenset((
    CONNECTION_FORCED, FRAME_ERROR, SYNTAX_ERROR, COMMAND_INVALID, CHANNEL_ERROR, UNEXPECTED_FRAME,
    RESOURCE_ERROR, NOT_ALLOWED, NOT_IMPLEMENTED, INTERNAL_ERROR,
))  # fmt: skip
"""Codes that close the connection; the others close the channel."""

CODES = {
    "FORBIDDEN": ACCESS_REFUSED, "AUTH_FAILED": ACCESS_REFUSED, "NO_SUCH_TOPIC": NOT_FOUND, "BAD_NAME": PRECONDITION_FAILED,
    "TOO_LARGE": PRECONDITION_FAILED, "BAD_ARGUMENT": PRECONDITION_FAILED, "EXISTS": PRECONDITION_FAILED,
    "PARTITIONED": PRECONDITION_FAILED, "MODE_CONFLICT": RESOURCE_LOCKED, "SHUTTING_DOWN": CONNECTION_FORCED,
}  # fmt: skip
"""The reply code of an error of the broker; RESOURCE_ERROR for the others."""
TEXT_BYTES_MAX = 250


class AmqpError(Exception):
    """An error that is told to the client with ``channel.close`` or ``connection.close``."""

    def __init__(self, code: int, text: str, method: tuple[int, int] = (0, 0)) -> None:
        """``method``: class and number of the method that failed; (0, 0) for none."""
        super().__init__(text)
        self.code = code
        self.text = text
        self.method = method

    @property
    def closes_connection(self) -> bool:
        return self.code in HARD

    @property
    def reply_text(self) -> str:
        """A text such as ``NOT_FOUND - no queue 'x'``, cut to the length of an AMQP short string."""
        return f"{NAMES.get(self.code, 'ERROR')} - {self.text}".encode()[:TEXT_BYTES_MAX].decode(errors="ignore")


def inequivalent(argument: str, of: str, given: object, has: object) -> AmqpError:
    """The error for a declaration that differs from the existing one, in RabbitMQ's words, which clients match."""
    one_is_none = given is None or has is None
    received, current = (_shown(value, with_type=one_is_none) for value in (given, has))
    text = f"inequivalent arg '{argument}' for {of}: received {received} but current is {current}"
    return AmqpError(PRECONDITION_FAILED, text)


def _shown(value: object, *, with_type: bool) -> str:
    if value is None:
        return "none"
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    if not with_type:
        return f"'{shown}'"
    kind = {"str": "longstr", "int": "signedint", "float": "double"}.get(type(value).__name__, type(value).__name__)
    return f"the value '{shown}' of type '{kind}'"


def amqp_error(error: AmqpError | RequestError | OSError) -> AmqpError:
    """Convert an error of the broker or of its disk to an AMQP error."""
    if isinstance(error, AmqpError):
        return error
    if isinstance(error, OSError):
        error = storage_error(error)
    return AmqpError(CODES.get(error.code, RESOURCE_ERROR), f"{error.code}: {error}")
