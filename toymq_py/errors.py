"""Every error of the project, in one tree, with its code on the wire. Contract: protocol.md, "Errors".

    ToymqError                      anything we raise on purpose
    ├─ RequestError                 a refused request; travels as ``ERR <code> <text>``
    │  ├─ UnknownCommand  BadArgument  BadName             the frame is valid, the request is not
    │  ├─ LineTooLong*  BadFraming*                        the next frame cannot be found
    │  ├─ PayloadTooLarge                                  fatal when the body is beyond 64 MiB
    │  ├─ NotTcp*                                          HTTP on the TCP port
    │  ├─ AuthRequired*  AuthFailed*  BadVersion*  Forbidden
    │  ├─ NoSuchTopic  NoSuchConsumer  TopicExists
    │  │  └─ NameBusy                                      a request that makes a topic of this name waits a moment
    │  │     └─ BeingDeleted  BeingMoved  BeingPlaced
    │  ├─ IsPartitioned                                    the command is for one of its partitions
    │  ├─ AlreadySubscribed  NotSubscribed  ModeConflict
    │  ├─ OutOfRange  QueueFull  OutOfSequence
    │  ├─ TooManyTopics  TooManyConsumers  TooManySubscriptions
    │  ├─ DiskLow  DiskFull  StorageFailed  TierBehind     publishing is refused, reading goes on
    │  ├─ TierAway                                         the bucket that has these records does not answer
    │  ├─ NotEnoughReplicas                                too few copies are in sync to publish
    │  ├─ TooManyConnections*  ShuttingDown*  NotLeader*
    │  ├─ Moved                                            another worker, or another group, has the topic
    │  ├─ PlacementUnknown                                 which group has the topic cannot be found out now
    │  └─ InternalError                                    a bug of ours; logged with its traceback
    └─ LocalError                   a problem of this machine or this caller; never sent to a peer
       ├─ ConfigError               an invalid option or setting
       ├─ DirectoryLocked           another broker owns the data directory
       ├─ DataDirectoryError        missing, read-only, not a directory
       │  └─ DirectoryLost          removed or replaced under the running broker
       ├─ DamagedData               bytes on disk that fail their checks
       ├─ ProtocolViolation         the broker violates the protocol (client side)
       ├─ BadOperation              a frame between two replicas that is invalid
       ├─ TermEnded                 this node no longer leads its group
       ├─ EtcdError                 no answer from etcd, or one that cannot be trusted
       │  ├─ EtcdWentBack           it was wiped, or restored from a snapshot
       │  └─ LeaseLost              the lease has ended
       ├─ ConnectionLost            the connection ended with replies still due (client side)
       └─ CommandFailed             the broker answered ``ERR`` with a code this client does not know

    * fatal: the connection is closed after the reply.
"""

from collections.abc import Callable
from typing import ClassVar, Self


class ToymqError(Exception):
    """Base of every error that toymq raises on purpose.

    ``code`` is stable, for programs; the text is for people. ``retryable``: the same call may succeed later.
    """

    code: str = "INTERNAL"
    retryable: ClassVar[bool] = False


class RequestError(ToymqError):
    """The broker refused a request, which it answered with ``ERR <code> <text>``.

    Attributes:
        code: identifies the error for programs; each code has a class.
        retryable: the same request may succeed later (QueueFull, DiskLow, DiskFull, OutOfSequence, TooManyConnections,
            TierAway, TierBehind, ShuttingDown, NotLeader, NotEnoughReplicas, PlacementUnknown). For the others the request, the
            rights or the broker must change first.
        fatal: the connection is closed after the error.
        token: the name of the refused token, for the broker's audit trail.
    """

    fatal: bool = False
    token: str | None = None

    def bare(self) -> Self:
        """This error without its traceback and cause. A stored error would keep the frames of its traceback alive, and they the
        object that stores it: a reference cycle, which only a full garbage collection frees."""
        self.__traceback__ = self.__context__ = self.__cause__ = None
        return self


class UnknownCommand(RequestError):
    """The first word of the line is not a command."""

    code = "UNKNOWN_COMMAND"


class BadArgument(RequestError):
    """An argument, option or setting is invalid."""

    code = "BAD_ARGUMENT"


class BadName(RequestError):
    """A topic, pattern or consumer name is invalid."""

    code = "BAD_NAME"


class LineTooLong(RequestError):
    """The header line has more than 4,096 bytes."""

    code = "LINE_TOO_LONG"
    fatal = True


class BadFraming(RequestError):
    """The bytes are not a frame, and the next frame cannot be found."""

    code = "BAD_FRAMING"
    fatal = True


class NotTcp(RequestError):
    """HTTP arrived on the port of the TCP protocol, perhaps from a web page that hides commands in a request's body."""

    code = "NOT_TCP"
    fatal = True


class PayloadTooLarge(RequestError):
    """The body is longer than the limit; ``fatal`` when it is too long to read and drop."""

    code = "PAYLOAD_TOO_LARGE"

    def __init__(self, text: str, *, fatal: bool = False) -> None:
        super().__init__(text)
        self.fatal = fatal


class AuthRequired(RequestError):
    """The broker has an auth file, and the client showed no token."""

    code = "AUTH_REQUIRED"
    fatal = True


class AuthFailed(RequestError):
    """The token is unknown or has expired."""

    code = "AUTH_FAILED"
    fatal = True

    def __init__(self, text: str, *, token: str | None = None) -> None:
        super().__init__(text)
        self.token = token


class BadVersion(RequestError):
    """The broker does not speak the version of HELLO."""

    code = "BAD_VERSION"
    fatal = True


class Forbidden(RequestError):
    """The token has no right to do this, or only the broker itself may."""

    code = "FORBIDDEN"


class NoSuchTopic(RequestError):
    """The topic does not exist, or is being deleted."""

    code = "NO_SUCH_TOPIC"


class NameBusy(NoSuchTopic):
    """A topic of this name cannot be made at this moment. A request that would make it waits: ``when_done`` registers a
    callback for the time when it may try again (ADR 0103)."""

    def __init__(self, text: str, when_done: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(text)
        self.when_done = when_done


class BeingDeleted(NameBusy):
    """The name is taken by a topic that is being deleted, for as long as the disk needs."""

    def __init__(
        self, topic: str, when_done: Callable[[Callable[[], None]], None], what: str = "is being deleted"
    ) -> None:
        super().__init__(f"{topic} {what}: send it again in a moment", when_done)


class BeingPlaced(NameBusy):
    """The groups of a cluster are agreeing on which of them gets the topic, for as long as etcd needs (ADR 0188)."""

    def __init__(self, topic: str, when_done: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(f"{topic} is being placed in a group: send it again in a moment", when_done)


class IsPartitioned(RequestError):
    """The topic is partitioned, and the command is for one partition. The text begins with the number of partitions."""

    code = "PARTITIONED"

    @classmethod
    def of(cls, topic: str, count: int, letters: str = "") -> Self:
        """The error for a topic with ``count`` partitions; ``letters`` is the suffix of dead-letter topics."""
        first, last = f"{topic}#0{letters}", f"{topic}#{count - 1}{letters}"
        word = "partition" if count == 1 else "partitions"
        return cls(f"{count} {word} of {topic}, {first} to {last}: name one")

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return int(str(self).partition(" ")[0])


class NoSuchConsumer(RequestError):
    """The topic has no consumer of this name."""

    code = "NO_SUCH_CONSUMER"


class TopicExists(RequestError):
    """The topic exists with other settings, or is being deleted."""

    code = "EXISTS"


class AlreadySubscribed(RequestError):
    """The session has a subscription to the topic, or to a pattern that overlaps."""

    code = "ALREADY_SUBSCRIBED"


class NotSubscribed(RequestError):
    """The session has no such subscription."""

    code = "NOT_SUBSCRIBED"


class ModeConflict(RequestError):
    """Another session holds the consumer, or shares it in another mode."""

    code = "MODE_CONFLICT"


class OutOfRange(RequestError):
    """The position is not in the log any more, or not yet. The text begins with ``first_id``."""

    code = "OUT_OF_RANGE"

    def __init__(self, first_id: int, text: str) -> None:
        super().__init__(f"{first_id} {text}")
        self.first_id = first_id

    @classmethod
    def outside(cls, topic: str, msg_id: int, first_id: int, next_id: int) -> Self:
        """The error for a position that the log of a topic does not have."""
        return cls(first_id, f"is the first id of {topic}, {next_id} the next: {msg_id} is outside")


class QueueFull(RequestError):
    """The backlog or the memory is at its limit."""

    code = "QUEUE_FULL"
    retryable = True


class OutOfSequence(RequestError):
    """An earlier publish of this producer was refused; it has to be repeated first."""

    code = "OUT_OF_SEQUENCE"
    retryable = True


class TooManyTopics(RequestError):
    """The broker or the token has reached its limit of topics."""

    code = "TOO_MANY_TOPICS"


class TooManyConsumers(RequestError):
    """The topic or the token has reached its limit of consumers."""

    code = "TOO_MANY_CONSUMERS"


class TooManySubscriptions(RequestError):
    """The session has reached its limit of subscriptions."""

    code = "TOO_MANY_SUBSCRIPTIONS"


class DiskLow(RequestError):
    """The disk has less free space than ``--min-free-bytes``."""

    code = "DISK_LOW"
    retryable = True


class DiskFull(RequestError):
    """The disk has no space or the process no descriptor left."""

    code = "DISK_FULL"
    retryable = True


class StorageFailed(RequestError):
    """The disk failed; the topic may refuse publishes until a restart."""

    code = "STORAGE_FAILED"


class TierBehind(RequestError):
    """More bytes of sealed segments wait for the bucket of ``--tier`` than ``--tier-local-max`` allows."""

    code = "TIER_BEHIND"
    retryable = True


class TierAway(RequestError):
    """The records are in the bucket of ``--tier``, which does not answer, or has not yet, and the request cannot wait."""

    code = "TIER_AWAY"
    retryable = True


class TooManyConnections(RequestError):
    """The broker, the address or the token has reached its limit of connections."""

    code = "TOO_MANY_CONNECTIONS"
    fatal = True
    retryable = True


class ShuttingDown(RequestError):
    """The broker is shutting down. Over HTTP also: the worker that had the request ended before it answered; then the text says
    that the outcome is unknown."""

    code = "SHUTTING_DOWN"
    fatal = True
    retryable = True


class NotEnoughReplicas(RequestError):
    """Fewer copies are in sync than the cluster requires (``min_in_sync``). The message was not stored."""

    code = "NOT_ENOUGH_REPLICAS"
    retryable = True


class NotLeader(RequestError):
    """This node does not lead its group. The text is the leader's ``host:port``, or ``-`` when none is known."""

    code = "NOT_LEADER"
    fatal = True
    retryable = True

    def __init__(self, text: str = "-") -> None:
        super().__init__(text)

    @property
    def leader(self) -> str | None:
        """The leader's ``host:port``."""
        found = str(self).partition(" ")[0]
        return found if found and found != "-" else None


class Moved(RequestError):
    """Another worker of this broker, or another group of this cluster, has the topic. The text begins with the ``host:port`` of
    that worker, or of the group's nodes, the leader first; nothing was done."""

    code = "MOVED"

    @property
    def address(self) -> str:
        """The first ``host:port``."""
        return str(self).partition(" ")[0]


class PlacementUnknown(RequestError):
    """It is unknown now which group has the topic, or is to have it: etcd or a group does not answer. Or the worker that has
    the topic does not answer. Nothing was done, unless the text says which part of a change to a partitioned topic may be done,
    and what to repeat."""

    code = "PLACEMENT_UNKNOWN"
    retryable = True
    moved: Moved | None = None
    """The reply to a client that follows MOVED, which repeats its request until the group has a leader again."""


class BeingMoved(PlacementUnknown, NameBusy):
    """The topic is being moved to another group of its cluster, which takes less than a second (ADR 0194)."""


class InternalError(RequestError):
    """A bug in the broker; its log has the traceback."""

    code = "INTERNAL"

    def __init__(self, text: str = "a bug in the broker; its log has the details") -> None:
        super().__init__(text)


class LocalError(ToymqError):
    """A problem on this side of a connection; never sent to the peer."""

    code = "LOCAL"


class ConfigError(LocalError):
    """An option or setting is invalid; the text names it and the remedy."""

    code = "CONFIG"


class DirectoryLocked(LocalError):
    """Another process owns the data directory. ``pid``, ``address`` (of a ``toymq serve``) and ``command`` (such as
    ``toymq repair``) are None if the lock file does not tell."""

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
    """The directory was removed or replaced under the running broker: nothing that it writes is kept."""


class DamagedData(LocalError):
    """Bytes on disk that fail their checks."""

    code = "DAMAGED_DATA"


class ProtocolViolation(LocalError):
    """The other end violates the protocol."""

    code = "PROTOCOL_VIOLATION"


class BadOperation(LocalError):
    """A frame between replicas is damaged, beyond a limit, or names a file that replicas do not share. The link ends."""

    code = "BAD_OPERATION"


class TermEnded(LocalError):
    """This node no longer leads its group and must not act as its leader."""

    code = "TERM_ENDED"


class EtcdError(LocalError):
    """etcd did not answer, or its answer cannot be trusted. The outcome of a transaction is then unknown."""

    code = "ETCD"
    retryable = True


class EtcdWentBack(EtcdError):
    """etcd is at a revision below one that this process has seen: it was wiped, or restored from a snapshot."""

    code = "ETCD_WENT_BACK"


class LeaseLost(EtcdError):
    """The lease in etcd has ended, and its keys are gone. A transaction that names it did not happen."""

    code = "LEASE_LOST"


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
