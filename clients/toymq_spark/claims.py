"""Claims: before a Spark task publishes rows, it stores their count and checksum, and compares them with those of earlier runs.

Contract: ADR 0016. Knows nothing of Spark.

A *run* is one attempt of Spark at a whole batch, cut into tasks. A later run may be cut differently, and PySpark tells a task
neither the number of the run nor that of the tasks. But every row that an earlier run may have published belongs to a task that
claimed it. If all tasks with earlier claims have the same rows in this run, no other task has any of those rows. So a task
without an earlier claim waits until they have confirmed that, and stops when one of them has other rows.

Records of ``CLAIMS_TOPIC``, all with a sequence, so that each is there once:

    producer               sequence            body
    <sink>.runs            epoch << 20 | n     {"run": …, "first": id}      run n of the batch has begun; first: id of run 0
    <sink>.<task>          epoch               {"rows": …, "crc32": …, "run": …}      the claim
    <sink>.<task>.run-<r>  epoch               {"same": …}      run r has compared the claim with its rows

A run ends when another begins. Its tasks may go on (on an executor that Spark has given up), so a task checks after its claim
that its run is still the last: either the task sees the new run, or the new run sees its claim.
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
from toymq_spark.errors import OptionError, ReplayMismatch, TooLate
from toymq_spark.rows import CLAIMS_TOPIC, Row, checksum

logger = logging.getLogger("toymq_spark")

RUN_BITS = 20
"""A million runs per batch and 2^31 batches keep a sequence below 2^63."""
IDLE_S = 300.0
"""Time that a task waits for the others of its run, which may have to compute their rows first."""
_ASK_S = 1.0


@dataclass(frozen=True, slots=True)
class Task:
    """Identity of a task: its sink, its number, its batch and its run.

    Attributes:
        sink: a name that is unique to this sink of this query.
        number: the number of the task in the batch.
        epoch: the number of the batch.
        run: an id that is unique to one attempt at the batch, and shared by all its tasks and their retries.
    """

    sink: str
    number: int
    epoch: int
    run: str

    @property
    def producer(self) -> str:
        return f"{self.sink}.{self.number}"


class Publisher(Protocol):
    """The calls of a client that claims need. All may raise OSError and ToymqError."""

    def publish(self, topic: str, messages: Sequence[Sequenced]) -> list[Receipt]: ...

    def record(self, topic: str, msg_id: int) -> Frame: ...

    def read(self, topic: str, from_id: int, wait_s: float) -> tuple[list[Frame], int]:
        """Return the records from an id on, and the next id; no records when none came within the wait."""


@dataclass(frozen=True, slots=True)
class _Run:
    """The record of a run in ``CLAIMS_TOPIC``: its id, its sequence number, and ``first``, the id of the record of the batch's
    first run."""

    first: int
    msg_id: int
    seq: int


def claim(
    publisher: Publisher,
    task: Task,
    rows: Sequence[Row],
    monotonic: Callable[[], float] = time.monotonic,  # noqa: TID251
) -> None:
    """Claim the rows of a task; return when the task may publish them.

    Raises: ReplayMismatch; OptionError when the token lacks a right; errors of the broker.
    """
    mine = {"rows": len(rows), "crc32": f"{checksum(rows):08x}"}
    try:
        run = _begin(publisher, task)
        if run.first != run.msg_id:
            _agree(publisher, task, run, mine, monotonic)
        _store_claim(publisher, task, mine)
        (latest,) = _publish(publisher, f"{task.sink}.runs", run.seq, {})
    except Forbidden as error:
        raise OptionError(
            f"the token needs publish and subscribe for {CLAIMS_TOPIC}, where a sink keeps its progress: {error}"
        ) from None
    if latest.msg_id != run.msg_id:
        _superseded(task)


def _begin(publisher: Publisher, task: Task) -> _Run:
    """Return the task's run, whose record is stored if it is new."""
    producer, number, first = f"{task.sink}.runs", task.epoch << RUN_BITS, None
    while True:
        body: dict[str, Any] = {"run": task.run} if first is None else {"run": task.run, "first": first}
        (receipt,) = _publish(publisher, producer, number, body)
        # Also read a new one: a token without the right to read this topic fails before anything is published.
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
    """Compare the rows with the claims of earlier runs. A task without an earlier claim waits until the tasks with one have
    compared theirs."""
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
    left = {f"{name}.run-{task.run}".encode(): name for name, claimed in before.items() if claimed["rows"]}
    logged = False
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
                    f"of these. {_why(task)}"
                )
            del left[frame.key]
            deadline = monotonic() + IDLE_S
        if left and not logged:
            logger.warning("%s, batch %d: waiting for %d tasks that had rows before", task.producer, task.epoch, len(left))
            logged = True
        if left and monotonic() > deadline:
            raise ReplayMismatch(
                f"{task.producer}, batch {task.epoch}: an earlier run was interrupted, and this task has to wait until "
                f"{min(left.values())} has compared its rows with that run, which did not happen within {IDLE_S:g} s. "
                "Run it again; if that task was not computing its rows, with as many cores as before, or as tasks. "
                f"{_past(task)}"
            )


def _store_claim(publisher: Publisher, task: Task, mine: dict[str, Any]) -> None:
    """Store the task's claim; a claim that is already stored has to be equal."""
    (receipt,) = _publish(publisher, task.producer, task.epoch, {**mine, "run": task.run})
    if not receipt.duplicate:
        return
    found = publisher.record(CLAIMS_TOPIC, receipt.msg_id)
    epoch = _sequence(found, task.producer)
    if epoch > task.epoch:
        _too_late(task.producer, epoch, task)
    _compare(task, json.loads(found.payload), mine)


def _why(task: Task) -> str:
    return (
        "A batch that is run again needs the same rows: was the query changed, or its number of partitions, or does it use "
        f"rand(), a clock, or a source that changes or was made anew? {_past(task)}"
    )


def _past(task: Task) -> str:
    return (
        f"skipBatch={task.epoch} of the sink goes past this batch: what an earlier attempt published of it stays, the rest is "
        "not published. Another producerId or checkpoint publishes the whole batch anew"
    )


def _compare(task: Task, before: dict[str, Any], mine: dict[str, Any]) -> None:
    if not _same(before, mine):
        raise ReplayMismatch(
            f"{task.producer}, batch {task.epoch}: this attempt has {mine['rows']} rows with checksum {mine['crc32']}, an "
            f"earlier one had {before.get('rows')} with {before.get('crc32')}, and may have published some of them. "
            f"{_why(task)}"
        )


def _same(before: dict[str, Any], mine: dict[str, Any]) -> bool:
    return (before.get("rows"), before.get("crc32")) == (mine["rows"], mine["crc32"])


def _between(publisher: Publisher, sink: str, from_id: int, to_id: int) -> list[Frame]:
    """Return the claims of one sink with ids in a range of ``CLAIMS_TOPIC``."""
    begin = f"{sink}.".encode()
    found: list[Frame] = []
    while from_id < to_id:
        frames, next_id = publisher.read(CLAIMS_TOPIC, from_id, 0)
        found += [frame for frame in frames if frame.msg_id < to_id and frame.key.startswith(begin)]
        if next_id <= from_id:
            break
        from_id = next_id
    return found


def _publish(publisher: Publisher, producer: str, seq: int, body: dict[str, Any]) -> list[Receipt]:
    return publisher.publish(CLAIMS_TOPIC, [Sequenced(producer, seq, json.dumps(body).encode())])


def _sequence(found: Frame, producer: str) -> int:
    seq = found.number(ATTRIBUTE_SEQUENCE)
    if found.key != producer.encode() or seq is None:
        raise TooLate(f"record {found.msg_id} of {CLAIMS_TOPIC} does not belong to {producer}")
    return seq


def _too_late(producer: str, epoch: int, task: Task) -> NoReturn:
    raise TooLate(f"{producer} is at batch {epoch}: this attempt at batch {task.epoch} comes too late")


def _superseded(task: Task) -> NoReturn:
    raise TooLate(f"{task.producer}: another run of batch {task.epoch} has begun: this attempt comes too late")
