"""A batch that is run again, divided into the same tasks or into others: no row is published twice."""

import json
import random
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.spark.test_publishing import FakeBroker, Killed, rows
from toymq.message import Sequenced
from toymq_py.errors import Forbidden
from toymq_py.storage.record import Frame
from toymq_spark import claims
from toymq_spark.claims import Task
from toymq_spark.errors import OptionError, ReplayMismatch
from toymq_spark.publishing import write_task
from toymq_spark.rows import CLAIMS_TOPIC

Cut = list[list[bytes]]
"""Rows of a batch, by task."""


class Waiting(Exception):
    """Raised where the task would wait for other tasks' claims, and there are no new ones."""


class ImpatientBroker(FakeBroker):
    """Raises instead of waiting, so that a test can run another task first."""

    def read(self, topic: str, from_id: int, wait_s: float) -> tuple[list[Frame], int]:
        frames, next_id = super().read(topic, from_id, wait_s)
        if wait_s and not frames:
            raise Waiting
        return frames, next_id


def task(number: int, run: str, epoch: int = 3) -> Task:
    return Task("spark.q.t", number, epoch, run)


def run_batch(broker: FakeBroker, run: str, cut: Cut, order: list[int]) -> list[int]:
    """Run a batch as Spark does: all tasks, until one fails for good.

    Returns: tasks that wait for others, which wait, too."""
    left = order
    while left:
        waiting = []
        for number in left:
            try:
                write_task(broker, task(number, run), rows(cut[number]))
            except Waiting:
                waiting.append(number)
        if waiting == left:
            return waiting
        left = waiting
    return []


def dealt(count: int, tasks: int, seed: int) -> Cut:
    """Deal ``count`` different rows to some tasks."""
    cut: Cut = [[] for _ in range(tasks)]
    for row in range(count):
        cut[(row * seed + row // 3) % tasks].append(b"%d" % row)
    return cut


cuts = st.builds(dealt, st.just(12), st.integers(1, 5), st.integers(0, 4))
attempts = st.lists(st.tuples(cuts, st.integers(0, 40), st.randoms(use_true_random=False)), max_size=3)


@given(attempts, cuts)
def test_however_often_and_however_a_batch_is_cut(tried: list[tuple[Cut, int, random.Random]], last: Cut) -> None:
    broker = ImpatientBroker()

    def attempt(run: str, cut: Cut, order: list[int]) -> bool:
        try:
            return not run_batch(broker, run, cut, order)
        except (Killed, ReplayMismatch):
            return False

    for at, (cut, lives, chance) in enumerate(tried):
        broker.lives = lives
        order = list(range(len(cut)))
        chance.shuffle(order)
        attempt(f"r{at}", cut, order)
        found = broker.bodies()
        assert len(set(found)) == len(found), "a row is there once"
    broker.lives = None
    done = attempt("last", last, list(range(len(last))))
    found = broker.bodies()
    assert len(set(found)) == len(found), "a row is there once"
    assert not done or len(found) == 12


@given(cuts, st.lists(st.tuples(st.integers(0, 40), st.randoms(use_true_random=False)), max_size=3))
def test_a_batch_that_is_cut_as_before_ends(cut: Cut, kills: list[tuple[int, random.Random]]) -> None:
    """The batch was interrupted anywhere, and its tasks run in any order."""
    broker = ImpatientBroker()
    for at, (lives, chance) in enumerate([*kills, (None, random.Random(1))]):
        broker.lives = lives
        order = list(range(len(cut)))
        chance.shuffle(order)
        try:
            assert run_batch(broker, f"r{at}", cut, order) == [], "none waits for ever"
        except Killed:
            assert lives is not None
    assert sorted(broker.bodies()) == sorted(b"%d" % row for row in range(12))


@pytest.mark.parametrize(("before", "now"), [(1, 4), (4, 1), (3, 4)])
def test_another_number_of_tasks_publishes_nothing(before: int, now: int) -> None:
    broker = ImpatientBroker()
    run_batch(broker, "r0", dealt(12, before, 1), list(range(before)))
    for number in reversed(range(now)):  # those that claimed nothing before come first
        with pytest.raises((Waiting, ReplayMismatch)):
            write_task(broker, task(number, "r1"), rows(dealt(12, now, 1)[number]))
    assert len(broker.bodies()) == 12
    with pytest.raises(ReplayMismatch, match="was the query changed, or its number of partitions"):
        write_task(broker, task(now - 1, "r1"), rows(dealt(12, now, 1)[now - 1]))
    run_batch(broker, "r2", dealt(12, before, 1), list(range(before)))
    assert len(broker.bodies()) == 12, "what was refused blocks no other task"


def test_a_run_that_was_broken_off_and_is_cut_otherwise() -> None:
    """The new run has one task, which claimed nothing before: rows that task 3 of the old run has published must not be
    published again."""
    broker = ImpatientBroker()
    write_task(broker, task(3, "r0"), rows([b"9", b"10"]))
    with pytest.raises(Waiting):
        write_task(broker, task(0, "r1"), rows(dealt(12, 1, 1)[0]))
    assert sorted(broker.bodies()) == [b"10", b"9"]


def test_waiting_has_an_end() -> None:
    broker, times = FakeBroker(), iter(range(0, 10_000, 100))
    write_task(broker, task(3, "r0"), rows([b"9"]))
    with pytest.raises(ReplayMismatch, match=r"spark\.q\.t\.3 has compared .* within 300 s\. Run it again; .* as many cores"):
        claims.claim(broker, task(0, "r1"), rows([b"1"]), lambda: float(next(times)))


class NewsBroker(FakeBroker):
    """A broker where, while a task waits, the others of its run go on, one at each question."""

    others: list[Task]

    def read(self, topic: str, from_id: int, wait_s: float) -> tuple[list[Frame], int]:
        if wait_s and self.others:
            other = self.others.pop(0)
            write_task(self, other, rows([b"%d" % other.number]))
        return super().read(topic, from_id, wait_s)


def test_news_prolong_the_waiting(caplog: pytest.LogCaptureFixture) -> None:
    broker, times = NewsBroker(), iter(range(0, 10_000, 200))
    for number in range(5):
        write_task(broker, task(number, "r0"), rows([b"%d" % number]))
    broker.others = [task(number, "r1") for number in range(5)]
    claims.claim(broker, task(9, "r1"), rows([b"9"]), lambda: float(next(times)))
    assert next(times) > 600
    assert caplog.text.count("waiting for 4 tasks") == 1
    write_task(broker, task(10, "r1"), rows([b"10"]))
    assert caplog.text.count("waiting for") == 1, "a task that has answered is not waited for"


def test_who_waits_ends_with_its_run() -> None:
    broker = NewsBroker()
    broker.others = []
    write_task(broker, task(3, "r0"), rows([b"3"]))
    broker.others = [task(3, "r2")]
    times = iter([0.0])  # it does not come to look at the time
    with pytest.raises(ReplayMismatch, match="another run of batch 3 has begun"):
        claims.claim(broker, task(9, "r1"), rows([b"9"]), lambda: next(times))


def test_what_other_sinks_say_is_not_kept() -> None:
    """A batch may be run again after a weekend, when other sinks have written millions of claims."""
    broker = ImpatientBroker()
    write_task(broker, task(0, "r0"), rows([b"0"]))
    others = [("spark.other.1", Sequenced("spark.other.1", n, b"no JSON of ours")) for n in range(9)]
    broker.topics[CLAIMS_TOPIC] += others
    write_task(broker, task(0, "r1"), rows([b"0"]))
    found = claims._between(broker, "spark.q.t", 0, len(broker.topics[CLAIMS_TOPIC]))
    assert {frame.key.split(b".")[1] for frame in found} == {b"q"}


def test_who_had_no_rows_is_not_waited_for() -> None:
    broker = ImpatientBroker()
    write_task(broker, task(0, "r0"), [])
    write_task(broker, task(1, "r1"), rows([b"1"]))
    assert broker.bodies() == [b"1"]


def test_a_task_that_lives_on_when_another_run_has_begun() -> None:
    """A task of an executor that was given up claims rows after the new run began: it publishes nothing, and no task waits for
    it."""
    broker = ImpatientBroker()
    write_task(broker, task(0, "r0"), rows([b"0"]))
    publish = broker.publish

    def meanwhile(topic: str, messages: list[Sequenced]) -> list[object]:
        if messages[0].producer == "spark.q.t.1":
            broker.publish = publish  # type: ignore[method-assign]
            write_task(broker, task(0, "r1"), rows([b"0"]))
        return publish(topic, messages)  # type: ignore[return-value]

    broker.publish = meanwhile  # type: ignore[assignment, method-assign]
    with pytest.raises(ReplayMismatch, match="another run of batch 3 has begun"):
        write_task(broker, task(1, "r0"), rows([b"1"]))
    assert broker.bodies() == [b"0"]
    with pytest.raises(ReplayMismatch, match="another run of batch 3 has begun"):
        write_task(broker, task(2, "r0"), rows([b"2"]))
    write_task(broker, task(1, "r1"), rows([b"1"]))
    write_task(broker, task(2, "r1"), rows([b"2"]))
    assert broker.bodies() == [b"0", b"1", b"2"]


def test_a_claim_of_before_there_were_runs() -> None:
    for others in (False, True):
        broker = FakeBroker()
        write_task(broker, task(0, "r0"), rows([b"0"]))
        said = json.loads(broker.bodies(CLAIMS_TOPIC, r"spark\.q\.t\.0")[0])
        del said["run"]
        broker.topics[CLAIMS_TOPIC] = [("spark.q.t.0", Sequenced("spark.q.t.0", 3, json.dumps(said).encode()))]
        if others:
            with pytest.raises(ReplayMismatch):
                write_task(broker, task(0, "r1"), rows([b"x"]))
        else:
            write_task(broker, task(0, "r1"), rows([b"0"]))
        assert broker.bodies() == [b"0"]


def test_a_token_that_may_not_read_the_claims_is_refused_at_once() -> None:
    class WriteOnly(FakeBroker):
        def record(self, topic: str, msg_id: int) -> Frame:
            raise Forbidden("token t may not subscribe to toymq-spark.claims")

    broker = WriteOnly()
    with pytest.raises(OptionError, match=r"needs publish and subscribe for toymq-spark\.claims"):
        write_task(broker, task(0, "r0"), rows([b"0"]))
    assert broker.bodies() == []


def names(broker: FakeBroker) -> Iterator[str]:
    return (re.sub(r"[0-9]+", "n", name) for name, _ in broker.topics[CLAIMS_TOPIC])


def test_a_first_run_says_no_more_than_it_has_to() -> None:
    broker = FakeBroker()
    run_batch(broker, "r", dealt(12, 2, 1), [0, 1])
    assert list(names(broker)) == ["spark.q.t.runs", "spark.q.t.n", "spark.q.t.n"]


def interrupted() -> ImpatientBroker:
    """Return a broker with an interrupted batch 3: task 0 is done, task 1 was killed when one of its three rows was
    published."""
    broker = ImpatientBroker()
    write_task(broker, task(0, "r0"), rows([b"a", b"b"]))
    broker.lives = 4  # run, claim, run, row
    with pytest.raises(Killed):
        write_task(broker, task(1, "r0"), rows([b"c", b"d", b"e"]))
    broker.lives = None
    assert broker.bodies() == [b"a", b"b", b"c"]
    return broker


@pytest.mark.parametrize("now", [[], [b"x", b"y"]], ids=["empty", "others"])
def test_a_batch_whose_source_was_made_anew_is_stuck_until_it_is_skipped_by_its_number(
    now: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    broker = interrupted()
    for run in ("r1", "r2"):
        with pytest.raises(ReplayMismatch, match=r"skipBatch=3 of the sink goes past this batch"):
            write_task(broker, task(0, run), rows(now))
    with pytest.raises(ReplayMismatch):
        write_task(broker, task(0, "r3"), rows(now), skip_batch=4)
    assert write_task(broker, task(0, "r4"), rows(now), skip_batch=3).skipped == len(now)
    assert "skipBatch=3: " in caplog.text
    assert broker.bodies() == [b"a", b"b", b"c"], "what was published stays, and nothing of it is published again"
    assert write_task(broker, task(0, "r4", epoch=4), rows([b"z"]), skip_batch=3).published == 1
    assert broker.bodies() == [b"a", b"b", b"c", b"z"]


def test_rows_as_before_are_published_although_their_batch_is_to_be_skipped() -> None:
    broker = interrupted()
    for number, values in enumerate(([b"a", b"b"], [b"c", b"d", b"e"])):
        assert write_task(broker, task(number, "r1"), rows(values), skip_batch=3).skipped == 0
    assert sorted(broker.bodies()) == [b"a", b"b", b"c", b"d", b"e"]


def test_a_skipped_task_without_rows_waits_for_no_other() -> None:
    """Task 1 claimed rows and task 0 was killed before it did; now the batch is one empty task: the other one would never
    come."""
    broker = ImpatientBroker()
    write_task(broker, task(1, "r0"), rows([b"a"]))
    assert write_task(broker, task(0, "r1"), [], skip_batch=3).published == 0


def test_an_attempt_that_comes_too_late_is_not_skipped() -> None:
    broker = ImpatientBroker()
    write_task(broker, task(0, "r0", epoch=4), rows([b"a"]))
    with pytest.raises(ReplayMismatch, match="comes too late"):
        write_task(broker, task(0, "r1"), rows([b"b"]), skip_batch=3)
