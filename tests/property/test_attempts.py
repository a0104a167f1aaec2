"""What a lost session, a time-out and a crash of the broker count as attempts: poison comes to an end, its neighbours do not.

Contract: delivery.md, "Attempts"; ADR 0053. Applications work in the order of ids and die at a message of their choice.
"""

from functools import partial

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.broker_rig import BrokerRig
from tests.support.shares import examples
from toymq_py.consumer import Consumer
from toymq_py.consumer.lease_run import Lessee

MAX_ATTEMPTS = 4
MESSAGES = 60
WAYS = ("session", "poll", "broker")
ALL_WAYS = (*WAYS, "left")
bounded = settings(max_examples=examples(300), derandomize=True, deadline=None, database=None)


class Applications:
    """Workers of one consumer. ``begun``: ids that a worker has begun to handle; ``held``: ids that ran out of attempts."""

    def __init__(self, workers: int, window: int) -> None:
        self.workers, self.window = workers, window
        self.consumer = Consumer("c", start=0, since_ns=1)
        self.consumer.limit_attempts(MAX_ATTEMPTS)
        self.begun: set[int] = set()
        self.held: set[int] = set()
        self.now = 0.0

    def live(self, way: str, done: list[int], poison: frozenset[int] = frozenset()) -> bool:
        """Let each worker take a window, ack its first ``done`` messages, begin the next one, and die there or at a poison
        message; or, as ``way`` says, leave without beginning another. Returns: whether there was anything left to take."""
        it = self.consumer
        owners = [Lessee(self.window) for _ in range(self.workers)]
        taken: list[list[int]] = []
        for owner in owners:
            ids: list[int] = []
            while len(ids) < self.window:
                if due := it.due(self.window - len(ids)):
                    it.take_due(owner, due, self.now + 30)
                    ids += due
                elif got := it.take_ready(owner, self.window - len(ids), self.now + 30, max_runs=1):
                    ids += [msg_id for first, last, _ in got for msg_id in range(first, last + 1)]
                elif (fresh := it.next_fresh(MESSAGES)) is not None:
                    last = min(fresh[1], fresh[0] + self.window - len(ids) - 1)
                    it.take_fresh(owner, fresh[0], last, self.now + 30)
                    ids += range(fresh[0], last + 1)
                else:
                    break
            taken.append(ids)
        for ids, count in zip(taken, done, strict=False):
            for place, msg_id in enumerate(sorted(ids)):
                if way == "left" and place == count:
                    break
                self.begun.add(msg_id)
                if place == count or msg_id in poison:
                    break
                it.ack([(msg_id, msg_id)])
        self._die(way, owners)
        for held in self.consumer.take_held(MESSAGES):
            self.held |= set(range(held.first, held.last + 1))
            self.consumer.ack_dead_lettered(held.first, held.last)
        return any(taken)

    def _die(self, way: str, owners: list[Lessee]) -> None:
        if way in ("session", "left"):
            for owner in owners:
                owner.uncounted = way == "left"
                self.consumer.release(owner)
        elif way == "poll":
            self.now += 30
            self.consumer.tick(self.now)
        else:
            self.consumer, _ = Consumer.restore("c", self.consumer.snapshot(), 0, MESSAGES)
            self.consumer.limit_attempts(MAX_ATTEMPTS)


workers, windows, ways = st.integers(1, 4), st.sampled_from([1, 2, 3, 10, 1024]), st.sampled_from(WAYS)


@bounded
@given(
    workers=workers, window=windows,
    lives=st.lists(
        st.tuples(st.sampled_from(ALL_WAYS), st.lists(st.integers(0, 3), min_size=4, max_size=4)), min_size=1, max_size=60
    ),
)  # fmt: skip
@example(workers=1, window=1024, lives=[("broker", [0, 0, 0, 0])] * MAX_ATTEMPTS)
@example(workers=4, window=10, lives=[("poll", [0, 0, 0, 0])] * MAX_ATTEMPTS)
@example(workers=1, window=10, lives=[("left", [0, 0, 0, 0])] * MAX_ATTEMPTS)
def test_nothing_is_given_up_that_no_application_began(workers: int, window: int, lives: list[tuple[str, list[int]]]) -> None:
    them = Applications(workers, window)
    for way, done in lives:
        them.live(way, done)
        assert them.held <= them.begun


@bounded
@given(workers=workers, window=windows, way=ways, poison=st.frozensets(st.integers(0, MESSAGES - 1), min_size=1, max_size=3))
def test_poison_comes_to_an_end_and_takes_nothing_along(workers: int, window: int, way: str, poison: frozenset[int]) -> None:
    them = Applications(workers, window)
    lives = 0
    while them.live(way, [MESSAGES] * workers, poison):
        lives += 1
        assert lives <= MAX_ATTEMPTS * len(poison) + MESSAGES, "bounded"
    assert them.held == poison


@pytest.mark.parametrize("place", [0, 1, 5, 9])
def test_poison_of_a_worker_that_acks_whole_windows_comes_to_an_end(place: int) -> None:
    """A poison message is given up after at most as many lost sessions as ADR 0053 says, and no message above it is."""
    it = Consumer("c", start=0, since_ns=1)
    it.limit_attempts(MAX_ATTEMPTS)
    lives, held = 0, list[int]()
    while place not in held:
        owner = Lessee(10)
        taken = sum(last + 1 - first for first, last, _ in it.take_ready(owner, 10, 30.0))
        if taken < 10 and (fresh := it.next_fresh(MESSAGES)):
            it.take_fresh(owner, fresh[0], fresh[0] + 9 - taken, 30.0)
        it.release(owner)
        lives += 1
        for letters in it.take_held(MESSAGES):
            held += range(letters.first, letters.last + 1)
            it.ack_dead_lettered(letters.first, letters.last)
    assert (lives, held) == ((place + 1) * MAX_ATTEMPTS, [*range(place + 1)])


def dead_letters(rig: BrokerRig) -> int:
    return rig.broker.topics["t.dlq"].log.committed_id if "t.dlq" in rig.broker.topics else 0


def test_a_broker_that_is_stopped_counts_no_attempt() -> None:
    """Found: five restarts made dead letters of a message that no handler had seen, and of one whose handler was still
    running."""
    rig = BrokerRig(max_attempts=3)
    rig.publish("t", b"x", b"y")
    for _ in range(5):
        subscription, pattern = rig.subscribe("t", "c"), rig.follow(">", "p")
        assert rig.take(subscription) == rig.take(pattern) == [(0, 1), (1, 1)]
        rig.broker.stop_deliveries()
        ended: list[bool] = []
        rig.broker.finish(partial(ended.append, True))
        rig.loop.advance(1)
        assert ended
        rig.broker.close()
        rig.restart()
    assert dead_letters(rig) == 0


def test_a_hundred_kills_give_up_nothing_that_gets_on() -> None:
    """Found: 82 healthy messages became dead letters after 100 kills, although one message was acked before each."""
    rig = BrokerRig(max_attempts=4)
    rig.publish("t", *[b"x"] * 200)
    for _ in range(100):
        taken = rig.take(rig.subscribe("t", window=100))
        rig.ack("t", taken[0][0], taken[0][0])
        rig.flush("t")
        rig.reopen()
    assert (dead_letters(rig), rig.broker.topic("t").consumers["c"].floor) == (0, 100)


def test_a_storm_of_takeovers_gives_up_nothing_that_gets_on() -> None:
    """Found: 19 healthy messages became dead letters at a limit of 20 attempts, with a new session in each of 100 rounds."""
    rig = BrokerRig(max_attempts=20)
    rig.publish("t", *[b"x"] * 200)
    for life in range(100):
        taken = rig.take(rig.subscribe("t", window=100))
        if life % 10 == 9:
            rig.ack("t", taken[0][0], taken[0][0])
        rig.loop.drain()
    assert dead_letters(rig) == 0


def test_attempts_of_what_is_delivered_never_fall() -> None:
    rig = BrokerRig(max_attempts=0)
    rig.publish("t", *[b"x"] * 10)
    before: dict[int, int] = {}
    for life in range(12):
        taken = dict(rig.take(rig.subscribe("t", window=10)))
        assert all(before.get(msg_id, 1) <= attempt for msg_id, attempt in taken.items())
        before |= taken
        if life % 3 == 0:
            rig.broker.topic("t").nack("c", [(life % 10, 9)], 0.0)
        rig.flush("t")
        if life % 2:
            rig.reopen()
    assert max(before.values()) > 5
