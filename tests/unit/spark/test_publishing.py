"""A task's rows are published once, in whatever order they come and however often the task dies."""

import contextlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.broker_process import BrokerProcess
from toymq import Receipt, sync
from toymq.message import Sequenced
from toymq_py.errors import BadArgument, DiskFull, StorageFailed
from toymq_py.storage.record import ATTRIBUTE_SEQUENCE, Frame, iter_frames
from toymq_spark.claims import Task
from toymq_spark.errors import OptionError, ReplayMismatch
from toymq_spark.options import BrokerAddress, SinkOptions
from toymq_spark.publishing import BrokerPublisher, Outcome, write_task
from toymq_spark.rows import CLAIMS_TOPIC, Row, rows_of
from toymq_spark.sink import task_of

TASK = Task("spark.q.t", 0, 3, "r0")
NEXT = Task("spark.q.t", 0, 4, "r0")
CLAIM, CHECK, RUN = r"spark.*\.[0-9]+", r"spark.*\.run-.*", r"spark.*\.runs"
"""Producers of what is in the claims topic."""


class Killed(Exception):
    """Raised where the task's process dies."""


@dataclass
class FakeBroker:
    """Topics with producer sequences, as protocol.md has them; dies after so many publishes."""

    topics: dict[str, list[tuple[str, Sequenced]]] = field(default_factory=dict)
    lives: int | None = None

    def publish(self, topic: str, messages: Sequence[Sequenced]) -> list[Receipt]:
        log = self.topics.setdefault(topic, [])
        receipts = []
        for message in messages:
            producer = message.producer
            if self.lives is not None:
                self.lives -= 1
                if self.lives < 0:
                    raise Killed
            ids = [msg_id for msg_id, (name, stored) in enumerate(log) if name == producer]
            if ids and message.seq <= log[ids[-1]][1].seq:
                receipts.append(Receipt(ids[-1], duplicate=True))
            else:
                log.append((producer, message))
                receipts.append(Receipt(len(log) - 1, duplicate=False))
        return receipts

    def record(self, topic: str, msg_id: int) -> Frame:
        producer, message = self.topics[topic][msg_id]
        return Frame(
            msg_id, 0, producer.encode(), message.body, {ATTRIBUTE_SEQUENCE: message.seq.to_bytes(8, "little")}, 0
        )

    def read(self, topic: str, from_id: int, wait_s: float) -> tuple[list[Frame], int]:
        end = len(self.topics[topic])
        return [self.record(topic, msg_id) for msg_id in range(from_id, end)], end

    def bodies(self, topic: str = "t", producer: str = ".*") -> list[bytes]:
        return [message.body for name, message in self.topics.get(topic, []) if re.fullmatch(producer, name)]


def table(values: Sequence[bytes], **columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), **columns})


def rows(values: Sequence[bytes]) -> list[Row]:
    return rows_of([table(values)], "t")


@given(st.lists(st.binary(max_size=3), max_size=12), st.lists(st.integers(0, 13), max_size=4), st.integers(0, 1 << 30))
def test_rows_in_any_order_and_kills_at_any_place(values: list[bytes], kills: list[int], seed: int) -> None:
    broker, order = FakeBroker(), random.Random(seed)
    for lives in kills:
        broker.lives = lives
        order.shuffle(values)
        with contextlib.suppress(Killed):
            write_task(broker, TASK, rows(values))
    broker.lives = None
    order.shuffle(values)
    outcome = write_task(broker, TASK, rows(values))
    assert outcome.published + outcome.duplicates == len(values)
    assert sorted(broker.bodies()) == sorted(values), "each row once, equal rows as often as there are of them"
    assert write_task(broker, TASK, rows(values)) == Outcome(0, len(values))
    write_task(broker, NEXT, rows(values))
    assert sorted(broker.bodies()) == sorted(values * 2), "the next batch is another"


@pytest.mark.parametrize("others", [[b"a", b"b"], [b"a", b"b", b"c", b"d"], [b"a", b"b", b"x"], []])
def test_other_rows_fail_and_publish_nothing(others: list[bytes]) -> None:
    broker = FakeBroker(lives=4)  # run, claim, whether the run is the last still, the first row
    with pytest.raises(Killed):
        write_task(broker, TASK, rows([b"a", b"b", b"c"]))
    broker.lives = None
    with pytest.raises(ReplayMismatch, match=f"spark.q.t.0, batch 3: this attempt has {len(others)} rows"):
        write_task(broker, TASK, rows(others))
    assert broker.bodies() == [b"a"]


def test_a_task_without_rows_claims_that_it_had_none() -> None:
    broker = FakeBroker()
    assert write_task(broker, TASK, []) == Outcome(0, 0)
    with pytest.raises(ReplayMismatch):
        write_task(broker, TASK, rows([b"moved here"]))


def test_an_attempt_that_comes_too_late() -> None:
    broker = FakeBroker()
    write_task(broker, NEXT, rows([b"x"]))
    with pytest.raises(ReplayMismatch, match="is at batch 4: this attempt at batch 3 comes too late"):
        write_task(broker, TASK, rows([b"x"]))


def test_rows_to_several_topics() -> None:
    broker = FakeBroker()
    write_task(broker, TASK, rows_of([table([b"1", b"2", b"3"], topic=pa.array(["y", "x", "y"]))], None))
    assert (broker.bodies("x"), broker.bodies("y")) == ([b"2"], [b"1", b"3"])


def test_who_a_task_is() -> None:
    plain = SinkOptions(BrokerAddress("toymq://h"), "t", None)
    named = SinkOptions(BrokerAddress("toymq://h"), None, "nightly")
    assert task_of(plain, "r", 2, "q", "7", known=True) == Task("spark.q.t", 2, 7, "r")
    assert task_of(named, "r", 2, "q", "7", known=False) == Task("spark.q.nightly", 2, 7, "r")
    assert task_of(named, "r", 2, None, None, known=False) == Task("spark.nightly", 2, 0, "r")
    assert task_of(plain, "r", 2, None, None, known=False) == Task("spark.r.t", 2, 0, "r")
    with pytest.raises(OptionError, match="Spark does not name the query and batch"):
        task_of(plain, "r", 2, None, None, known=True)


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("data") / "d") as running:
        yield running


def url_of(broker: BrokerProcess) -> str:
    return f"toymq://127.0.0.1:{broker.port}"


def stored(broker: BrokerProcess, topic: str) -> list[Frame]:
    with sync.connect(url_of(broker)) as client:
        return list(iter_frames(client.fetch(topic, 0, 10_000).frames))


@pytest.mark.parametrize("killed_at", [2, 3, 5], ids=["as it looks", "as it claims", "as it publishes"])
def test_against_a_real_broker_with_kills_between_and_within(broker: BrokerProcess, killed_at: int) -> None:
    values = [b"%d" % n for n in range(5000)]
    written = rows_of([table(values, key=pa.array([b"k%d" % n if n % 2 else None for n in range(5000)], pa.binary()))], "t")
    attempts = 0

    publisher = BrokerPublisher(BrokerAddress(url_of(broker), 3, 0), lambda _: None)
    ask = publisher._broker.connected

    def killing() -> sync.Client:
        nonlocal attempts
        attempts += 1
        client = ask()
        if attempts == killed_at:  # what follows goes into a socket of a broker that is gone
            broker.restart()
        return client

    publisher._broker.connected = killing  # type: ignore[method-assign]
    write_task(publisher, TASK, written)
    assert attempts >= 5
    again = write_task(publisher, TASK, written)
    assert again == Outcome(0, 5000)
    publisher.close()
    found = stored(broker, "t")
    assert sorted(frame.payload for frame in found) == sorted(values)
    claims = [(frame.key, frame.number(ATTRIBUTE_SEQUENCE)) for frame in stored(broker, CLAIMS_TOPIC)]
    assert claims == [(b"spark.q.t.runs", 3 << 20), (b"spark.q.t.0", 3)]


def test_a_row_that_is_too_large_is_named(broker: BrokerProcess) -> None:
    publisher = BrokerPublisher(BrokerAddress(url_of(broker), 0, 0))
    topics, ids, zeros = pa.array(["s"] * 3), pa.array([7, 8, 9], pa.int64()), pa.array([0] * 3, pa.int32())
    values = [b"a", b"x" * (3 << 20), b"c"]
    written = rows_of([table(values, topic=topics, offset=ids, partition=zeros)], "t")
    with pytest.raises(OptionError, match=r"column value is too large: 3145728 bytes .*\(in the row of topic s, offset 8\)$"):
        write_task(publisher, TASK, written)
    publisher.close()


def test_what_does_not_pass_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    answers: list[Exception | None] = []

    class Scripted:
        def pub_many(self, topic: str, messages: Sequence[Sequenced], *, window: int) -> Iterator[Receipt]:
            for at, _ in enumerate(messages):
                answer = answers.pop(0)
                if answer is not None:
                    raise answer
                yield Receipt(at, duplicate=False)

        def close(self) -> None:
            pass

    monkeypatch.setattr(sync, "connect", lambda url, **_: Scripted())
    publisher = BrokerPublisher(BrokerAddress("toymq://h", 2, 100), pauses.append)
    messages = [Sequenced("p", n, b"") for n in range(3)]
    answers[:] = [None, DiskFull("full"), None, DiskFull("full"), DiskFull("full"), None]
    assert len(publisher.publish("t", messages)) == 3
    assert pauses == [0.1, 0.1, 0.2], "progress begins the count anew"
    for refusal in (StorageFailed("closed"), BadArgument("no")):
        answers[:] = [None, refusal]
        with pytest.raises(type(refusal)):
            publisher.publish("t", messages)
    answers[:] = [DiskFull("full")] * 3
    with pytest.raises(DiskFull):
        publisher.publish("t", messages)
    publisher.close()


def test_rows_are_numbered_by_where_they_came_from() -> None:
    broker = FakeBroker()
    topics, offsets = pa.array(["b", "a", "a"]), pa.array([1, 9, 2], pa.int64())
    rows_with_source = rows_of(
        [table([b"1", b"2", b"3"], topic=topics, offset=offsets, partition=pa.array([0, 0, 0], pa.int32()))], "t"
    )
    write_task(broker, TASK, rows_with_source)
    assert broker.bodies() == [b"3", b"2", b"1"]
    assert [message.seq for _, message in broker.topics["t"]] == [3 << 32, (3 << 32) + 1, (3 << 32) + 2]
    assert broker.bodies(CLAIMS_TOPIC, CLAIM)[0].startswith(b'{"rows": 3, "crc32": "')


def test_a_batch_has_numbers_for_so_many_rows() -> None:
    with pytest.raises(OptionError, match="at most 4294967296 rows"):
        write_task(FakeBroker(), Task("p", 0, 1 << 31, "r"), [])
