"""Every error that an application may meet, in one tree: those of a client, and those of ``toymq_py.errors``.

    ToymqError
    ├─ RequestError …              the broker's answer, one class for each code
    ├─ SubscriptionEnded           the broker ended a subscription, and it stays ended
    │  ├─ TakenOver                another session subscribed as the same consumer
    │  └─ ConsumerDeleted          the topic or the consumer was deleted
    ├─ JobFailed                   a job that was called for its result has failed for good
    ├─ JobProcessEnded             the child process that ran a job ended before the job
    └─ LocalError
       ├─ ConfigError              an option or URL that makes no sense
       ├─ DirectoryLost            the directory of ``toymq.open`` was removed or replaced below it
       ├─ ConnectFailed            no broker could be reached (also a builtin ConnectionError)
       │  └─ CertificateRefused    this client does not accept the broker's certificate
       ├─ ConnectionLost           the outcome of a request is unknown
       │  └─ ClientClosed          this client was closed
       ├─ RequestTimeout           no answer in time (also a builtin TimeoutError)
       ├─ ProtocolViolation        the peer is not a broker of this version
       └─ CommandFailed            an ``ERR`` code that this version does not know
"""

from toymq_py.errors import (
    AlreadySubscribed,
    AuthFailed,
    AuthRequired,
    BadArgument,
    BadFraming,
    BadName,
    BadVersion,
    CommandFailed,
    ConfigError,
    ConnectionLost,
    DamagedData,
    DataDirectoryError,
    DirectoryLocked,
    DirectoryLost,
    DiskFull,
    DiskLow,
    Forbidden,
    InternalError,
    IsPartitioned,
    LineTooLong,
    LocalError,
    ModeConflict,
    Moved,
    NoSuchConsumer,
    NoSuchTopic,
    NotEnoughReplicas,
    NotLeader,
    NotSubscribed,
    NotTcp,
    OutOfRange,
    OutOfSequence,
    PayloadTooLarge,
    PlacementUnknown,
    ProtocolViolation,
    QueueFull,
    RequestError,
    ShuttingDown,
    StorageFailed,
    TierAway,
    TierBehind,
    TooManyConnections,
    TooManyConsumers,
    TooManySubscriptions,
    TooManyTopics,
    TopicExists,
    ToymqError,
    UnknownCommand,
)  # fmt: skip

__all__ = [
    "AlreadySubscribed", "AuthFailed", "AuthRequired", "BadArgument", "BadFraming", "BadName", "BadVersion",
    "CertificateRefused", "ClientClosed", "CommandFailed", "ConfigError", "ConnectFailed", "ConnectionLost", "ConsumerDeleted",
    "DamagedData", "DataDirectoryError", "DirectoryLocked", "DirectoryLost", "DiskFull", "DiskLow", "Forbidden",
    "InternalError", "IsPartitioned", "JobFailed", "JobProcessEnded", "LineTooLong", "LocalError", "ModeConflict", "Moved",
    "NoSuchConsumer", "NoSuchTopic", "NotEnoughReplicas", "NotLeader", "NotSubscribed", "NotTcp", "OutOfRange", "OutOfSequence",
    "PayloadTooLarge", "PlacementUnknown", "ProtocolViolation", "QueueFull", "RequestError", "RequestTimeout", "ShuttingDown",
    "StorageFailed", "SubscriptionEnded", "TakenOver", "TierAway", "TierBehind", "TooManyConnections", "TooManyConsumers",
    "TooManySubscriptions", "TooManyTopics", "TopicExists", "ToymqError", "UnknownCommand",
]  # fmt: skip


class SubscriptionEnded(ToymqError):
    """The broker ended a subscription. ``code``: the code in the broker's CLOSED."""

    code = "SUBSCRIPTION_ENDED"


class TakenOver(SubscriptionEnded):
    """Another session subscribed as the same exclusive consumer. The client does not subscribe again: two sessions would take
    over from each other for ever."""

    code = "TAKEN_OVER"


class ConsumerDeleted(SubscriptionEnded):
    """The topic was deleted, or the consumer was deleted by FORGET."""

    code = "DELETED"


class JobFailed(ToymqError):
    """A job that was called for its result has failed for good: it is a dead letter.

    Attributes:
        error_type, text: of the exception that its worker saw last.
    """

    code = "JOB_FAILED"

    def __init__(self, job: str, error_type: str, text: str) -> None:
        super().__init__(f"{job}: {error_type}: {text}")
        self.error_type = error_type
        self.text = text


class JobProcessEnded(ToymqError):
    """The child process that ran a job ended before the job did: killed, out of memory, ``os._exit``. The job has failed."""

    code = "JOB_PROCESS_ENDED"


class ConnectFailed(LocalError, ConnectionError):
    """No broker could be reached. ``__cause__`` is NotLeader if a node of a cluster answered, otherwise the failure at the last
    address."""

    code = "CONNECT_FAILED"
    retryable = True


class CertificateRefused(ConnectFailed):
    """This client accepts no certificate of the addresses that it tried. It does not try again: the broker needs another
    certificate, or ``connect`` another ``ssl``."""

    code = "CERTIFICATE_REFUSED"
    retryable = False


class RequestTimeout(LocalError, TimeoutError):
    """No answer came in time; the text says what was awaited. The outcome of a publish is unknown."""

    code = "TIMEOUT"
    retryable = True


class ClientClosed(ConnectionLost):
    """The client was closed before or during the call."""

    code = "CLIENT_CLOSED"
    retryable = False
