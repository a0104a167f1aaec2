"""Publishes the rows of a Spark task exactly once, however often the task runs.

Contract: spark.md, "Sink"; protocol.md, ``PUB … seq=``; ADR 0016. Knows nothing of Spark.

A task is identified by its producer (sink and task number) and its epoch (the batch's number). The order of rows after a
shuffle differs from run to run, so they are sorted and numbered, and the number is the producer's sequence number: when the
task runs again, the broker recognises the rows that it has stored. That requires that the task has the same rows again:

1. The claim (``claims``): count and checksum of the rows are stored before any row is published, once per producer and epoch.
   An earlier claim has to be equal, otherwise the task fails and publishes no row. And if the batch ran before, no other task
   may have had rows of this task.
2. The rows are published with sequence number ``epoch << 32 | row``. The reply ``DUP`` means that an earlier attempt published
   the row.

An attempt that goes on beside a later one (on an executor that Spark has given up) uses the same numbers for the same rows.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from toymq import Receipt
from toymq.message import Sequenced
from toymq_py.errors import DamagedData, IsPartitioned, NoSuchTopic, PayloadTooLarge, ToymqError
from toymq_py.storage.record import Frame, iter_frames
from toymq_spark.broker import TRANSIENT, RetryingClient
from toymq_spark.claims import Publisher, Task, claim
from toymq_spark.errors import OptionError, ReplayMismatch, TooLate
from toymq_spark.options import BrokerAddress
from toymq_spark.rows import Row, place_of

logger = logging.getLogger("toymq_spark")

ROWS_MAX = 1 << 32
EPOCHS_MAX = 1 << 31
"""Keeps a sequence below 2^63."""
WINDOW = 2048
"""Most unanswered rows; then the task waits, which slows Spark to the broker's pace."""

READ_COUNT = 1000


@dataclass(frozen=True, slots=True)
class Outcome:
    """The numbers of rows that this attempt stored, that were stored before, and that the option skipBatch left out."""

    published: int
    duplicates: int
    skipped: int = 0


def write_task(publisher: Publisher, task: Task, rows: Sequence[Row], skip_batch: int | None = None) -> Outcome:
    """Publish the rows of a task.

    Args:
        rows: the task's rows, in their total order (``rows.rows_of``).
        skip_batch: number of a batch in which a task whose rows differ from those of an earlier attempt leaves its rows out,
            and does not fail.

    Raises: ReplayMismatch; OptionError for too many rows; errors of the broker.
    """
    if len(rows) >= ROWS_MAX or not 0 <= task.epoch < EPOCHS_MAX:
        raise OptionError(f"{len(rows)} rows in epoch {task.epoch}: at most {ROWS_MAX} rows and {EPOCHS_MAX} epochs")
    if skip_batch == task.epoch and not rows:  # those it might wait for may have no task any more
        logger.warning("skipBatch=%d: %s has no rows now", task.epoch, task.producer)
        return Outcome(0, 0)
    try:
        claim(publisher, task, rows)
    except ReplayMismatch as error:
        if skip_batch != task.epoch or isinstance(error, TooLate):
            raise
        logger.warning("skipBatch=%d: %d rows of %s are not published: %s", task.epoch, len(rows), task.producer, error)
        return Outcome(0, 0, len(rows))
    first = task.epoch << 32
    receipts = []
    for topic, numbered in groupby(enumerate(rows, first), lambda pair: pair[1].topic):
        messages = [
            Sequenced(task.producer, seq, row.body, row.hdr, row.delay_ms, row.ttl_ms, row.route) for seq, row in numbered
        ]
        try:
            receipts += publisher.publish(topic, messages)
        except PayloadTooLarge as error:  # of the largest, for one
            row = max((row for row in rows if row.topic == topic), key=lambda row: len(row.body))
            raise OptionError(f"column value is too large: {error}{place_of(row)}") from None
    duplicates = sum(receipt.duplicate for receipt in receipts)
    return Outcome(len(receipts) - duplicates, duplicates)


class BrokerPublisher:
    """Publishes to a broker, and reads from it. After a transient error, unconfirmed publishes are sent again."""

    def __init__(self, address: BrokerAddress, sleep: Callable[[float], None] = time.sleep) -> None:
        self._broker = RetryingClient(address, sleep)

    def publish(self, topic: str, messages: Sequence[Sequenced]) -> list[Receipt]:
        """Publish messages and wait for their receipts. Raises: ToymqError, OSError."""
        if any(message.route for message in messages) and not self._is_divided(topic):
            messages = [message._replace(route=b"") for message in messages]  # it would cost the broker time for nothing
        receipts: list[Receipt] = []
        failures = 0
        while len(receipts) < len(messages):
            confirmed = len(receipts)
            try:
                for receipt in self._broker.connected().pub_many(topic, messages[confirmed:], window=WINDOW):
                    receipts.append(receipt)
            except (*TRANSIENT, ToymqError) as error:
                failures = 1 if len(receipts) > confirmed else failures + 1
                if not self._broker.pause(error, failures, f"publishing to {topic}"):
                    raise
        return receipts

    def _is_divided(self, topic: str) -> bool:
        """Whether a topic has partitions, so that messages need a route. Raises: ToymqError, OSError."""
        try:
            self._broker.call(f"looking at {topic}", lambda client: client.offsets(topic))
        except IsPartitioned:
            return True
        except NoSuchTopic:
            return False
        return False

    def record(self, topic: str, msg_id: int) -> Frame:
        """Read the record with an id. Raises: ToymqError, OSError."""
        for frame in self._fetch(topic, msg_id, 1, 0)[0]:
            if frame.msg_id == msg_id:
                return frame
        raise DamagedData(f"record {msg_id} of {topic} is gone")

    def read(self, topic: str, from_id: int, wait_s: float) -> tuple[list[Frame], int]:
        """Return the records from an id on, and the next id. Raises: ToymqError, OSError."""
        return self._fetch(topic, from_id, READ_COUNT, wait_s)

    def close(self) -> None:
        self._broker.close()

    def _fetch(self, topic: str, from_id: int, count: int, wait_s: float) -> tuple[list[Frame], int]:
        batch = self._broker.call(f"reading {topic}", lambda client: client.fetch(topic, from_id, count, wait=wait_s))
        return list(iter_frames(batch.frames)), batch.next_id
