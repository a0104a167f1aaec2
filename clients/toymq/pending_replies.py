"""Slots: a slot is a command that awaits its reply. It has the bytes to send, and turns the reply into the caller's result.
Sans-IO."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

from toymq.errors import ConnectFailed
from toymq_py.errors import CommandFailed, ConnectionLost, ProtocolViolation, ToymqError
from toymq_py.protocol import (
    Cluster,
    Command,
    HelloReply,
    JsonReply,
    MessagePush,
    OkReply,
    Ping,
    PongReply,
    Pull,
    Reply,
    encode_command,
)

Answer = Reply | ToymqError
GiveBack = Callable[[list[MessagePush]], None]
"""Called with the deliveries that no caller takes."""


BESIDE_ACKS = frozenset({"NACK", "TOUCH", "PING"})
"""Commands about other messages than the acks, or about none. Sent ahead of acks, they leave these to become ranges."""


class Slot(ABC):
    """A command and its reply. ``deadline`` is in seconds of the caller's clock; None waits for ever."""

    __slots__ = ("deadline",)
    is_work = True
    """Whether its answer shows that the connection is of use."""

    def __init__(self) -> None:
        self.deadline: float | None = None

    @property
    @abstractmethod
    def awaited(self) -> str:
        """The answer that the command awaits, in the words of a time-out error."""

    @property
    def follows_acks(self) -> bool:
        """Whether the command must go behind the acks that were given before it: a SEEK ahead of them would undo them."""
        return True

    @property
    def repeatable(self) -> bool:
        """Whether the command may be sent again when the connection is lost before its reply."""
        return False

    @property
    def done(self) -> bool:
        """Whether no caller waits for the outcome any more."""
        return False

    @abstractmethod
    def frame(self) -> bytes:
        """The bytes to send."""

    def as_repeat(self) -> Self:
        """Return this command marked as a repeat: it was sent before and got no reply."""
        return self

    def answered(self, reply: Reply) -> None:
        """Take the broker's reply. Raises: ProtocolViolation when the reply does not fit the command."""
        if not isinstance(reply, OkReply):
            raise unexpected(self.awaited, reply)

    def refused(self, error: ToymqError) -> None:
        """Take the broker's ERR reply."""
        self.failed(error)

    def failed(self, error: ToymqError) -> None:  # noqa: B027 (optional)
        """Take an error in place of a reply, which will not come."""

    def dropped(self) -> None:  # noqa: B027 (optional)
        """Note that the command is not repeated after the connection was lost, since its caller has given up."""


class CallSlot(Slot):
    """A command whose caller waits for the reply. It is encoded at once, so that the caller gets the error of a bad
    argument."""

    __slots__ = ("_data", "_on_done", "_repeatable", "_verb", "answer", "expect")

    def __init__(self, command: Command, expect: type[Reply], *, repeatable: bool = False) -> None:
        """Encode the command. Raises: BadName, BadArgument."""
        super().__init__()
        self._data = encode_command(command)
        self._verb = self._data.partition(b" ")[0].decode().strip()
        self._on_done: Callable[[], None] | None = None
        self._repeatable = repeatable
        self.expect = expect
        self.answer: Answer | None = None

    @property
    def awaited(self) -> str:
        return f"the reply to {self._verb}"

    @property
    def follows_acks(self) -> bool:
        return self._verb not in BESIDE_ACKS

    @property
    def repeatable(self) -> bool:
        return self._repeatable

    @property
    def done(self) -> bool:
        return self.answer is not None

    def when_done(self, call: Callable[[], None]) -> None:
        """Set the callback that is called at the answer or the failure."""
        self._on_done = call

    def frame(self) -> bytes:
        return self._data

    def answered(self, reply: Reply) -> None:
        if not isinstance(reply, self.expect):
            error = unexpected(self._verb, reply)
            self._settle(error)
            raise error
        self._settle(reply)

    def failed(self, error: ToymqError) -> None:
        self._settle(error)

    def abandon(self) -> None:
        """Stop waiting: the reply is dropped when it comes."""
        self._on_done = None
        self._settle(ConnectionLost("the caller stopped waiting"))

    def again(self) -> None:
        """Clear the answer, so that the command can be sent over another connection with the same deadline."""
        self.answer = None

    def _settle(self, answer: Answer) -> None:
        if self.answer is None:
            self.answer = answer
            if self._on_done is not None:
                self._on_done()


class FollowSlot(CallSlot):
    """The command that tells the broker that this client follows MOVED to other workers."""

    __slots__ = ()
    is_work = False

    def __init__(self) -> None:
        super().__init__(Cluster(moved=True), JsonReply)


class PingSlot(CallSlot):
    """A PING, which asks the broker for a sign of life when it owes no other reply."""

    __slots__ = ()
    is_work = False

    def __init__(self, deadline: float) -> None:
        super().__init__(Ping(), PongReply)
        self.deadline = deadline


class PullSlot(CallSlot):
    """A PULL. It collects the deliveries before its reply that match no subscription.

    They are leased. If no caller takes them, after a cancellation for example, they go to ``give_back``.
    """

    __slots__ = ("_give_back", "messages")

    def __init__(self, command: Pull, give_back: GiveBack) -> None:
        """Encode the command. Raises: BadName, BadArgument."""
        super().__init__(command, OkReply)
        self._give_back = give_back
        self.messages: list[MessagePush] = []

    def answered(self, reply: Reply) -> None:
        left = self.done
        super().answered(reply)
        if left:
            self._return()

    def failed(self, error: ToymqError) -> None:
        super().failed(error)
        self._return()

    def dropped(self) -> None:
        self._return()

    def abandon(self) -> None:
        super().abandon()
        self._return()

    def _return(self) -> None:
        messages, self.messages = self.messages, []
        if messages:
            self._give_back(messages)


class HelloSlot(Slot):
    """The HELLO that begins a connection."""

    __slots__ = ("_command", "_on_answer")
    is_work = False

    def __init__(self, command: Command, on_answer: Callable[[HelloReply | ToymqError], None]) -> None:
        super().__init__()
        self._command = command
        self._on_answer = on_answer

    @property
    def awaited(self) -> str:
        return "the reply to HELLO"

    def frame(self) -> bytes:
        return encode_command(self._command)

    def answered(self, reply: Reply) -> None:
        if not isinstance(reply, HelloReply):
            error = unexpected("HELLO", reply)
            self._on_answer(error)
            raise error
        self._on_answer(reply)

    def failed(self, error: ToymqError) -> None:
        self._on_answer(error)


def check_greeting(answer: HelloReply | ToymqError) -> None:
    """Check the reply to HELLO. Raises: the broker's error; ConnectFailed if the connection was lost before the reply: no
    request was under way, so no outcome is unknown."""
    if type(answer) is ConnectionLost:  # not ClientClosed
        reason = answer.__cause__ or answer
        needs = ": the broker requires a client certificate" if "CERTIFICATE_REQUIRED" in str(reason) else ""
        raise ConnectFailed(f"no greeting from the broker{needs}: {reason}") from answer
    if isinstance(answer, ToymqError):
        raise answer


def unexpected(what: str, reply: Reply) -> ProtocolViolation:
    return ProtocolViolation(f"the broker answered {what} with {type(reply).__name__}")


def leaves_no_trace(error: ToymqError) -> bool:
    """Whether a publish that failed with this error is certainly not stored. It may be stored after a storage failure or a bug
    in the broker, and when the broker cannot find out where the topic is, since an earlier attempt may have been stored."""
    return error.code not in ("STORAGE_FAILED", "INTERNAL", "PLACEMENT_UNKNOWN") and not isinstance(error, CommandFailed)
