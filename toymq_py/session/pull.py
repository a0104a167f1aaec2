"""A pending PULL: leases messages when its reply is written, and may wait for them at the head of the replies.

Contract: protocol.md, "PULL". So late a lease means that nothing is leased to a client that is gone, and a wait that ends
counts no attempt. While the PULL waits, the replies behind it are blocked.
"""

import asyncio

from toymq_py.broker import Broker
from toymq_py.errors import RequestError
from toymq_py.protocol import Frames, Pull, encode_ok
from toymq_py.session.deliveries import Deliveries, encode_delivery
from toymq_py.session.gate import Gate
from toymq_py.session.replies import WAIT_COST_BYTES, PendingReply, Replies
from toymq_py.subscription import PatternPoll
from toymq_py.topic import Delivery

PULL_BYTES_MAX = 1024 * 1024
"""About the most that one PULL returns, except for one larger message."""


class Pulls:
    """The unanswered PULLs of one session."""

    __slots__ = ("_broker", "_deliveries", "_gate", "_loop", "_pending", "_replies")

    def __init__(
        self, broker: Broker, replies: Replies, deliveries: Deliveries, loop: asyncio.AbstractEventLoop, gate: Gate
    ) -> None:
        self._broker = broker
        self._replies = replies
        self._deliveries = deliveries
        self._loop = loop
        self._gate = gate
        self._pending: dict[PendingPull, None] = {}

    def pull(self, command: Pull) -> None:
        """Queue a PULL. Raises: as ``Broker.poll``; then nothing of it is left."""
        pulling = PendingPull(command, self._broker, self._replies, self._deliveries, self._pending, self._gate)
        if command.wait_ms:
            pulling.wait(self._loop.call_later(command.wait_ms / 1000, pulling.finish))
        pulling.begin()

    def end_waits(self) -> bool:
        """Answer all waiting PULLs with the messages that are ready. Returns: whether there were any."""
        waiting = [pulling for pulling in self._pending if pulling.waits]
        for pulling in waiting:
            pulling.finish()
        return bool(waiting)

    def close(self) -> None:
        """End all PULLs: the connection is gone."""
        for pulling in list(self._pending):
            pulling.close()


class PendingPull:
    """One PULL until it is answered; a key of ``pulls`` until then."""

    __slots__ = ("_at_head", "_deliveries", "_gate", "_held", "_max_count", "_poll", "_pulls", "_registered", "_replies",
                 "_taken", "_timer")  # fmt: skip

    def __init__(
        self, command: Pull, broker: Broker, replies: Replies, deliveries: Deliveries, pulls: "dict[PendingPull, None]",
        gate: Gate,
    ) -> None:  # fmt: skip
        """Begin the poll. Raises: as ``Broker.poll``; then nothing of it is left."""
        self._replies = replies
        self._deliveries = deliveries
        self._pulls = pulls
        self._gate = gate
        self._max_count = command.max_count
        self._timer: asyncio.TimerHandle | None = None
        self._at_head = False
        """Whether the pull found no message and waits at the head of the replies: for its time, or, without a wait, until it is
        known how far damage goes: "nothing" would be wrong."""
        self._taken: list[tuple[Delivery, Frames]] = []
        visibility_s = None if command.visibility_ms is None else command.visibility_ms / 1000
        self._poll = broker.poll(
            command.topic, command.consumer, visibility_s=visibility_s, wake=self._woken, mode=command.mode
        )
        self._poll.number = command.lease or 0
        self._held = PendingReply(WAIT_COST_BYTES)
        self._registered = False
        pulls[self] = None
        gate.pull(1)

    def wait(self, timer: asyncio.TimerHandle) -> None:
        """Let the pull wait until the timer calls ``finish``."""
        self._timer = timer

    @property
    def waits(self) -> bool:
        """Whether the PULL may still wait: its time is not over."""
        return self._timer is not None

    def begin(self) -> None:
        """Queue the reply."""
        self._replies.hold(self._held)
        if isinstance(self._poll, PatternPoll):
            self._poll.on_cost = self._charge
        self._poll.when_registered(self._on_registered)

    def _charge(self, size: int) -> None:
        if self in self._pulls:
            self._replies.charge(self._held, size)

    def _on_registered(self, error: OSError | RequestError | None) -> None:
        self._registered = True
        if self not in self._pulls:
            return  # its wait was over before, and it is answered
        if error is not None:
            self.close()
            self._replies.fail(self._held, error)
        else:
            self._replies.fill(self._held, self._make)

    def _woken(self) -> bool:
        if not self._at_head:
            return False  # it looks when it is at the head
        self._replies.fill(self._held, self._make)
        return not self._deliveries.stalled

    def finish(self) -> None:
        """End the wait, and answer with the ready messages. A new consumer need not be on stable storage: it begins at the
        first id, and would do so again after a restart. Idempotent."""
        waits = self.waits
        self._stop_waiting()
        if self._at_head or (waits and not self._registered):
            self._replies.fill(self._held, self._make)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _make(self) -> bytes | None:
        """Lease ready messages and make the reply; see ``replies.MakeReply``. Returns: None while the PULL waits."""
        try:
            deliveries = self._poll.take(self._max_count, self._deliveries.bytes_to_take(PULL_BYTES_MAX))
            try:
                self._deliveries.check_room(sum(delivery.size for delivery in deliveries))
            except RequestError:
                for delivery in deliveries:
                    delivery.unsend()
                raise
        except (RequestError, OSError):
            self.close()
            raise
        if not deliveries and not self._poll.closed and (self.waits or self._poll.is_examining):
            self._at_head = True
            self._deliveries.pull = self._poll
            self._held.make = None
            return None
        self.close()
        self._taken = [(delivery, encode_delivery(delivery)) for delivery in deliveries]
        self._held.released = self._released
        pieces = [piece for _, frames in self._taken for piece in frames.pieces]
        pieces.append(encode_ok(sum(map(len, deliveries))))
        return b"".join(pieces)

    def _released(self, begin: int) -> None:
        taken, self._taken, self._held.released = self._taken, [], None  # else a cycle would keep the messages
        for delivery, frames in taken:
            begin += self._deliveries.add_to_write(delivery, frames, begin)

    def close(self) -> None:
        """End a pull that is answered or whose connection is gone. Idempotent."""
        self._stop_waiting()
        if self in self._pulls:
            del self._pulls[self]
            self._gate.pull(-1)
        if self._deliveries.pull is self._poll:
            self._deliveries.pull = None
        self._poll.close()
