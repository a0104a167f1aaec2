"""Every error of the project, in one tree.

Owns the names and the wire codes (contract: protocol.md, "Errors"). Knows nothing of where an error is raised.

    ToymqError                      anything we raise on purpose
    ├─ RequestError                 the peer's mistake or an answer it must handle; travels as ``ERR <code> <text>``
    │  ├─ UnknownCommand  BadArgument  BadName             the line was framed well, the request is wrong
    │  ├─ LineTooLong*  BadFraming*                        no way to find the next frame
    │  ├─ PayloadTooLarge                                  fatal when the body is beyond 64 MiB
    │  ├─ NotTcp*                                          HTTP on the port of the wire
    │  ├─ AuthRequired*  AuthFailed*  BadVersion*  Forbidden
    │  ├─ NoSuchTopic  NoSuchConsumer  TopicExists
    │  ├─ AlreadySubscribed  NotSubscribed  ModeConflict
    │  ├─ OutOfRange  QueueFull  OutOfSequence
    │  ├─ TooManyTopics  TooManyConsumers  TooManySubscriptions
    │  ├─ DiskLow  DiskFull  StorageFailed                 publishing is refused, reading goes on
    │  ├─ TooManyConnections*  ShuttingDown*
    │  └─ InternalError                                    a bug of ours; logged with its traceback
    └─ LocalError                   this machine's or this caller's trouble; never sent to a peer
       ├─ ConfigError               an option that makes no sense
       ├─ DirectoryLocked           another broker owns the data directory
       ├─ DataDirectoryError        missing, read-only, not a directory
       │  └─ DirectoryLost          removed or replaced below the running broker
       ├─ DamagedData               bytes on disk that fail their checks
       ├─ ProtocolViolation         the broker sent what the protocol does not know (client side)
       ├─ ConnectionLost            the connection ended with replies still due (client side)
       └─ CommandFailed             the broker answered ``ERR`` with a code this client does not know

    * fatal: the connection is closed after the reply.
"""

from typing import ClassVar


class ToymqError(Exception):
    """Base of every deliberate error.

    ``code`` is stable: one word for programs, where the text is for people. ``retryable``: the same call may succeed later
    without a change.
    """

    code: str = "INTERNAL"
    retryable: ClassVar[bool] = False


class RequestError(ToymqError):
    """An error that travels as ``ERR <code> <text>``.

    ``code`` is part of the wire's contract. ``fatal``: the session ends after the reply. ``token``: name of the token that was
    refused, where it is known; for the audit trail.
    """

    fatal: bool = False
    token: str | None = None


class UnknownCommand(RequestError):
    code = "UNKNOWN_COMMAND"


class BadArgument(RequestError):
    code = "BAD_ARGUMENT"


class BadName(RequestError):
    code = "BAD_NAME"


class LineTooLong(RequestError):
    code = "LINE_TOO_LONG"
    fatal = True


class BadFraming(RequestError):
    code = "BAD_FRAMING"
    fatal = True


class NotTcp(RequestError):
    """HTTP arrives on the port of the wire: a browser, maybe a page that uses one to send commands in a request's body."""

    code = "NOT_TCP"
    fatal = True


class PayloadTooLarge(RequestError):
    """The announced body is over the limit; ``fatal`` when it is too long even to be drained."""

    code = "PAYLOAD_TOO_LARGE"

    def __init__(self, text: str, *, fatal: bool = False) -> None:
        super().__init__(text)
        self.fatal = fatal


class AuthRequired(RequestError):
    code = "AUTH_REQUIRED"
    fatal = True


class AuthFailed(RequestError):
    code = "AUTH_FAILED"
    fatal = True

    def __init__(self, text: str, *, token: str | None = None) -> None:
        super().__init__(text)
        self.token = token


class BadVersion(RequestError):
    code = "BAD_VERSION"
    fatal = True


class Forbidden(RequestError):
    code = "FORBIDDEN"


class NoSuchTopic(RequestError):
    code = "NO_SUCH_TOPIC"


class NoSuchConsumer(RequestError):
    code = "NO_SUCH_CONSUMER"


class TopicExists(RequestError):
    code = "EXISTS"


class AlreadySubscribed(RequestError):
    code = "ALREADY_SUBSCRIBED"


class NotSubscribed(RequestError):
    code = "NOT_SUBSCRIBED"


class ModeConflict(RequestError):
    code = "MODE_CONFLICT"


class OutOfRange(RequestError):
    """A position that is no longer, or not yet, in the log. The text begins with ``first_id``."""

    code = "OUT_OF_RANGE"

    def __init__(self, first_id: int, text: str) -> None:
        super().__init__(f"{first_id} {text}")
        self.first_id = first_id


class QueueFull(RequestError):
    code = "QUEUE_FULL"
    retryable = True


class OutOfSequence(RequestError):
    code = "OUT_OF_SEQUENCE"
    retryable = True


class TooManyTopics(RequestError):
    code = "TOO_MANY_TOPICS"


class TooManyConsumers(RequestError):
    code = "TOO_MANY_CONSUMERS"


class TooManySubscriptions(RequestError):
    code = "TOO_MANY_SUBSCRIPTIONS"


class DiskLow(RequestError):
    code = "DISK_LOW"
    retryable = True


class DiskFull(RequestError):
    code = "DISK_FULL"
    retryable = True


class StorageFailed(RequestError):
    code = "STORAGE_FAILED"


class TooManyConnections(RequestError):
    code = "TOO_MANY_CONNECTIONS"
    fatal = True
    retryable = True


class ShuttingDown(RequestError):
    code = "SHUTTING_DOWN"
    fatal = True
    retryable = True


class InternalError(RequestError):
    code = "INTERNAL"


class LocalError(ToymqError):
    """Trouble on this side of the wire."""

    code = "LOCAL"


class ConfigError(LocalError):
    """An option or setting that makes no sense; the text names it and what would be right."""

    code = "CONFIG"


class DirectoryLocked(LocalError):
    """Another process owns the data directory. ``pid``, ``address`` and ``command`` are None when the lock file does not say;
    an address is that of a ``toymq serve``, a command ends by itself: ``toymq repair``."""

    code = "DIRECTORY_LOCKED"

    def __init__(self, path: str, pid: int | None, address: str | None = None, command: str | None = None) -> None:
        owner = f"process {pid}" if pid is not None else "another process"
        instead = f", a broker: connect to {address} instead" if address is not None else ""
        if command is not None:
            instead = f", `{command}`: try again when that has ended"
        super().__init__(f"{path} is in use by {owner}{instead}")
        self.path = path
        self.pid = pid
        self.address = address
        self.command = command


class DataDirectoryError(LocalError):
    """The data directory cannot be used: missing parent, not a directory, read-only."""

    code = "DATA_DIRECTORY"


class DirectoryLost(DataDirectoryError):
    """The directory was removed or replaced below the running broker: what it writes there is not kept."""


class DamagedData(LocalError):
    """Bytes on disk that fail their checks."""

    code = "DAMAGED_DATA"


class ProtocolViolation(LocalError):
    """The other end sent something the protocol does not know."""

    code = "PROTOCOL_VIOLATION"


class ConnectionLost(LocalError):
    """The connection ended while replies were still due."""

    code = "CONNECTION_LOST"
    retryable = True


class CommandFailed(LocalError):
    """The broker answered with an error code that this version does not know."""

    code = "COMMAND_FAILED"

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code


def _request_errors() -> dict[str, type[RequestError]]:
    return {cls.code: cls for cls in RequestError.__subclasses__()}


REQUEST_ERRORS: dict[str, type[RequestError]] = _request_errors()
"""Wire code to class, for clients that turn ``ERR`` lines into exceptions."""
