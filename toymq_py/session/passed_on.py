"""The state of what a session has passed on to another worker: its subscriptions there, and the expected replies. ADR 0156."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from toymq_py.errors import REQUEST_ERRORS
from toymq_py.names import TopicPattern
from toymq_py.placement import PlaceLink
from toymq_py.protocol import Publish
from toymq_py.session.refused_sequences import RefusedSequences
from toymq_py.session.replies import PendingReply
from toymq_py.session.spread_subscription import SpreadSubscription
from toymq_py.topic import Refused


class Subscribed:
    """A subscription at a worker, from the OK of its SUB to that of its UNSUB."""

    __slots__ = ("ending", "in_hand", "pattern", "wanted")

    def __init__(self, pattern: TopicPattern | None, spread: SpreadSubscription | None = None, *, wanted: bool = True) -> None:
        self.in_hand = None if spread is None else spread.in_hand
        self.pattern = pattern
        self.ending = False
        """Whether its UNSUB is sent."""
        self.wanted = wanted
        """Whether the subscription is wanted; False: the client was told that there is none."""


class Expected:
    """The expected replies to a command that was passed on. ``held``: their place among the session's replies; None drops
    them."""

    __slots__ = ("ends", "held", "last", "left", "pieces", "share", "spread", "subscribes", "told", "unsent")

    def __init__(
        self, held: PendingReply | None, left: int, subscribes: str | None = None,
        share: Callable[[bytes], None] | None = None, ends: str | None = None, spread: SpreadSubscription | None = None,
        told: Callable[[bytes], bytes] | None = None, unsent: Callable[[], None] | None = None,
        last: bool = False,
    ) -> None:  # fmt: skip
        """
        Args:
            subscribes, ends: for a SUB and an UNSUB, the name of its topic or pattern.
            share: gets the answer, which is one worker's share of the reply.
            spread: the subscription that sent the SUB; it is told when there is no answer.
            told: converts each reply to the one for the client.
            unsent: called when the worker was not reached.
            last: the session asks while it ends, so the answer comes after its end.
        """
        self.held = held
        self.left = left
        self.pieces: list[bytes] = []
        self.subscribes = subscribes
        self.share = share
        self.ends = ends
        self.spread = spread
        self.told = told
        self.unsent = unsent
        self.last = last

    def forget(self) -> None:
        """Drop the references to the session, which has ended; the replies that still come are ignored."""
        self.held = self.spread = self.told = self.unsent = None
        if not self.last:
            self.share = None


class WorkerLink:
    """A session's connection to one worker."""

    __slots__ = ("expected", "later", "link", "subscribed", "waiting")

    def __init__(self) -> None:
        self.link: PlaceLink
        self.expected: deque[Expected] = deque()
        self.subscribed: dict[str, Subscribed] = {}
        self.later: list[bytes] | None = None
        """The frames behind the OK of a SUB that is not written yet."""
        self.waiting: list[SpreadSubscription] = []
        """The subscriptions that ask when the place is reached."""

    def subscription_of(self, frame: bytes) -> Subscribed | None:
        """The subscription of a MSG; None for a message of a PULL."""
        return self.covering(frame[4 : frame.index(b" ", 4)].decode())

    def covering(self, topic: str) -> Subscribed | None:
        """The subscription to a topic, or to a pattern that matches it; None without one."""
        found = self.subscribed.get(topic)
        if found is None and self.subscribed:
            found = next((one for one in self.subscribed.values() if one.pattern and one.pattern.matches(topic)), None)
        return found

    def ending(self, topic: str) -> None:
        """Note that the UNSUB of a subscription is being sent; messages that come before its reply still belong to it."""
        if (found := self.subscribed.get(topic)) is not None:
            found.ending = True


def code_of(frame: bytes) -> str | None:
    """The code of an ``ERR``; None for any other reply."""
    return frame.split(b" ", 2)[1].strip().decode() if frame.startswith(b"ERR ") else None


def is_fatal(frame: bytes) -> bool:
    """Whether a frame is an ``ERR`` after which the connection ends."""
    code = code_of(frame)
    return code is not None and (error := REQUEST_ERRORS.get(code)) is not None and error.fatal


def rows_of(command: Publish, start: int, stop: int) -> Publish:
    """The publishes ``start`` to below ``stop`` of a run."""
    rows = slice(start, stop)
    return replace(
        command, keys=command.keys[rows], bodies=command.bodies[rows], seqs=command.seqs and command.seqs[rows],
        delays_ms=command.delays_ms and command.delays_ms[rows], ttls_ms=command.ttls_ms and command.ttls_ms[rows],
        routes=command.routes and command.routes[rows],
    )  # fmt: skip


def admitted(command: Publish, refused: RefusedSequences) -> Iterator[Publish | Refused]:
    """Split the publishes of a run. A publish behind a refused one of its producer is refused here, since the worker does not
    know of the refusal."""
    if command.seqs is None:
        yield command
        return
    at, count = 0, len(command.keys)
    while at < count:
        stop = refused.admit(command.topic, command.keys, command.seqs, at)
        if stop == at:
            yield Refused(1, refused.error(command.topic, command.keys[at]))
            at += 1
        else:
            yield rows_of(command, at, stop)
            at = stop
