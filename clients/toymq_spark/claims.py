"""Claims: a task stores count and checksum of its rows before it publishes them, and compares with earlier runs of its batch.

Contract: ADR 0016. Knows nothing of Spark.

A *run* is one attempt of Spark at a whole batch, with its own cut into tasks. A batch that is run again is cut as before, or
not: a task cannot know, since PySpark tells it neither how many there are nor how many there were. But every row that an
earlier run may have published belongs to a task that claimed rows. When all of those tasks have the same rows in this run,
then no other task has any of them. So a task that claimed nothing before waits until they have said so, and stops when one
says no.

Records of ``CLAIMS_TOPIC``, all with a sequence, so that each is there once:

    producer               sequence            body
    <sink>.runs            epoch << 20 | n     {"run": …, "first": id}      run n of the batch has begun; first: id of run 0
    <sink>.<task>          epoch               {"rows": …, "crc32": …, "run": …}      the claim
    <sink>.<task>.run-<r>  epoch               {"same": …}      run r has compared the claim with its rows

A run is over when another begins. Its tasks may live on (an executor that was given up), so a task looks after its claim
whether its run is the last one still: either it sees the new run, or the new run sees its claim.
"""

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from toymq import Receipt
from toymq.message import Sequenced
from toymq_py.errors import Forbidden
from toymq_py.storage.record import ATTRIBUTE_SEQUENCE, Frame
from toymq_spark.errors import OptionError, ReplayMismatch
from toymq_spark.rows import CLAIMS_TOPIC, Row, checksum

logger = logging.getLogger("toymq_spark")

RUN_BITS = 20
"""A million runs of a batch, and 2^31 batches: a sequence stays below 2^63."""
IDLE_S = 300.0
"""How long a task waits for others of its run that compare nothing. They may have to compute their rows first."""
_ASK_S = 1.0


@dataclass(frozen=True, slots=True)
class Task:
    """Identity of a task: its sink, its number, its batch and its run.

    Attributes:
        sink: unique to this sink of this query.
        number: of the task in the batch.
        epoch: number of the batch.
        run: the same for all tasks of one attempt at the batch, those tried again included, and no other attempt.
    """

    sink: str
    number: int
    epoch: int
    run: str

    @property
    def producer(self) -> str:
        return f"{self.sink}.{self.number}"


class Publisher(Protocol):
    """The client calls that claims need. All may raise OSError and ToymqError."""

    def publish(self, topic: str, messages: Sequence[Sequenced]) -> list[Receipt]: ...

    def record(self, topic: str, msg_id: int) -> Frame: ...

    def read(self, topic: str, from_id: int, wait_s: float) -> tuple[list[Frame], int]:
        """Records from an id on, and the next id; none when there are none after the wait."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Id range of a run of records in the topic; ``first``: of the batch's first run."""

    first: int
    msg_id: int
    seq: int


def claim(
    publisher: Publisher,
    task: Task,
    rows: Sequence[Row],
    monotonic: Callable[[], float] = time.monotonic,  # noqa: TID251
) -> None:
    """Returns when the task may publish its rows.

    Raises: ReplayMismatch. OptionError when the token lacks a right. What the broker refuses with.
    """
    mine = {"rows": len(rows), "crc32": f"{checksum(rows):08x}"}
    try:
        run = _begin(publisher, task)
        if run.first != run.msg_id:
            _agree(publisher, task, run, mine, monotonic)
        _say(publisher, task, mine)
        (latest,) = _publish(publisher, f"{task.sink}.runs", run.seq, {})
    except Forbidden as error:
        raise OptionError(
            f"the token needs both publish and subscribe for {CLAIMS_TOPIC}, where a sink keeps what it has done: {error}"
        ) from None
    if latest.msg_id != run.msg_id:
        _superseded(task)


def _begin(publisher: Publisher, task: Task) -> _Run:
    """The task's run, made known if it is not."""
    producer, number, first = f"{task.sink}.runs", task.epoch << RUN_BITS, None
    while True:
        said: dict[str, Any] = {"run": task.run} if first is None else {"run": task.run, "first": first}
        (receipt,) = _publish(publisher, producer, number, said)
        # Read even where it is new: a token without the right to read this topic fails before anything is published.
        found = publisher.record(CLAIMS_TOPIC, receipt.msg_id)
        seq = _sequence(found, producer)
        if seq >> RUN_BITS > task.epoch:
            _too_late(producer, seq >> RUN_BITS, task)
        latest = json.loads(found.payload)
        first = latest.get("first", receipt.msg_id)
        if latest["run"] == task.run:
            return _Run(first, receipt.msg_id, seq)
        for frame in _between(publisher, task.sink, first, receipt.msg_id):
            if frame.key == producer.encode() and json.loads(frame.payload)["run"] == task.run:
                _superseded(task)
        number = seq + 1


def _agree(publisher: Publisher, task: Task, run: _Run, mine: dict[str, Any], monotonic: Callable[[], float]) -> None:
    """Compare the rows with what earlier runs claimed; a task that claimed nothing waits until the others have."""
    before: dict[str, dict[str, Any]] = {}
    for frame in _between(publisher, task.sink, run.first, run.msg_id):
        sink, _, number = frame.key.decode("utf-8", "replace").rpartition(".")
        if sink == task.sink and number.isdigit() and frame.number(ATTRIBUTE_SEQUENCE) == task.epoch:
            before[f"{sink}.{number}"] = json.loads(frame.payload)
    own = before.get(task.producer)
    if own is not None:
        _publish(publisher, f"{task.producer}.run-{task.run}", task.epoch, {"same": _same(own, mine)})
        _compare(task, own, mine)
        return
    # A task that claimed to have no rows has published none.
    left = {f"{name}.run-{task.run}".encode(): name for name, said in before.items() if said["rows"]}
    told = False
    at, deadline = run.msg_id + 1, monotonic() + IDLE_S
    while left:
        frames, at = publisher.read(CLAIMS_TOPIC, at, _ASK_S)
        for frame in frames:
            if frame.key == f"{task.sink}.runs".encode():
                _superseded(task)
            name = left.get(frame.key)
            if name is None or frame.number(ATTRIBUTE_SEQUENCE) != task.epoch:
                continue
            if not json.loads(frame.payload)["same"]:
                raise ReplayMismatch(
                    f"{task.producer}, batch {task.epoch}: {name} has other rows than before, and may have published some "
                    f"that are here now. {_WHY}"
                )
            del left[frame.key]
            deadline = monotonic() + IDLE_S
        if left and not told:
            logger.warning("%s, batch %d: waiting for %d tasks that had rows before", task.producer, task.epoch, len(left))
            told = True
        if left and monotonic() > deadline:
            raise ReplayMismatch(
                f"{task.producer}, batch {task.epoch}: an earlier run was broken off, and this task has to wait until "
                f"{min(left.values())} has compared its rows with what it had then, which did not come within {IDLE_S:g} s. "
                "Run it again; if that task was not computing its rows meanwhile, with as many cores as Spark had, or as tasks"
            )


def _say(publisher: Publisher, task: Task, mine: dict[str, Any]) -> None:
    """The claim; it has to be the one that is there, if one is."""
    (receipt,) = _publish(publisher, task.producer, task.epoch, {**mine, "run": task.run})
    if not receipt.duplicate:
        return
    found = publisher.record(CLAIMS_TOPIC, receipt.msg_id)
    epoch = _sequence(found, task.producer)
    if epoch > task.epoch:
        _too_late(task.producer, epoch, task)
    _compare(task, json.loads(found.payload), mine)


_WHY = (
    "The rows of a batch have to be the same when it is run again: was the query changed, or its number of partitions, or does "
    "it use rand(), a clock, or a source that changes? Another producerId or checkpoint publishes all of the batch anew"
)


def _compare(task: Task, before: dict[str, Any], mine: dict[str, Any]) -> None:
    if not _same(before, mine):
        raise ReplayMismatch(
            f"{task.producer}, batch {task.epoch}: this attempt has {mine['rows']} rows with checksum {mine['crc32']}, an "
            f"earlier one had {before.get('rows')} with {before.get('crc32')}, and may have published some of them. {_WHY}"
        )


def _same(before: dict[str, Any], mine: dict[str, Any]) -> bool:
    return (before.get("rows"), before.get("crc32")) == (mine["rows"], mine["crc32"])


def _between(publisher: Publisher, sink: str, from_id: int, to_id: int) -> list[Frame]:
    """Claims of one sink, among those of other sinks, which may be millions."""
    begin = f"{sink}.".encode()
    found: list[Frame] = []
    while from_id < to_id:
        frames, next_id = publisher.read(CLAIMS_TOPIC, from_id, 0)
        found += [frame for frame in frames if frame.msg_id < to_id and frame.key.startswith(begin)]
        if next_id <= from_id:
            break
        from_id = next_id
    return found


def _publish(publisher: Publisher, producer: str, seq: int, said: dict[str, Any]) -> list[Receipt]:
    return publisher.publish(CLAIMS_TOPIC, [Sequenced(producer, seq, json.dumps(said).encode())])


def _sequence(found: Frame, producer: str) -> int:
    seq = found.number(ATTRIBUTE_SEQUENCE)
    if found.key != producer.encode() or seq is None:
        raise ReplayMismatch(f"record {found.msg_id} of {CLAIMS_TOPIC} is not one of {producer}")
    return seq


def _too_late(producer: str, epoch: int, task: Task) -> NoReturn:
    raise ReplayMismatch(f"{producer} has gone on to batch {epoch}: this attempt at batch {task.epoch} comes too late")


def _superseded(task: Task) -> NoReturn:
    raise ReplayMismatch(f"{task.producer}: another run of batch {task.epoch} has begun: this attempt comes too late")
