"""Publishing a task's rows exactly once, however often the task is run.

Contract: spark.md, "Sink"; protocol.md, ``PUB … seq=``; ADR 0016. Knows nothing of Spark.

A task is known by its producer (who writes, and which task of it) and its epoch (which batch). The order of rows after a
shuffle is not the same twice, so they are put in a total order and numbered, and the number is the sequence. When the task is
run again after a crash the broker knows the rows that it has by their numbers. That is right only if they are the same rows:

1. The claim: count and checksum of the rows go to the topic ``CLAIMS_TOPIC``, under the same producer, with the epoch as their
   sequence, before any row is published. The broker keeps one claim for each producer and epoch.
2. If there is a claim already it is read. It has to be the same as this one: otherwise the task fails, and publishes nothing.
3. The rows are published with sequence ``epoch << 32 | row``. A ``DUP`` is a row that an earlier attempt published.

An attempt that lives on while a later one runs (an executor that was given up) says the same numbers for the same rows.
"""

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from toymq_client import Receipt, sync
from toymq_client.message import Sequenced
from toymq_py.errors import DamagedData, ToymqError
from toymq_py.storage.record import ATTRIBUTE_SEQUENCE, Frame, iter_frames
from toymq_spark.broker import TRANSIENT, connect
from toymq_spark.errors import OptionError, ReplayMismatch
from toymq_spark.options import BrokerAddress
from toymq_spark.rows import CLAIMS_TOPIC, Row, checksum

logger = logging.getLogger("toymq_spark")

ROWS_MAX = 1 << 32
EPOCHS_MAX = 1 << 31
"""So that a sequence stays below 2^63."""
WINDOW = 2048
"""Rows on their way to the broker; above that the task waits, which is how the broker's pace reaches Spark."""


@dataclass(frozen=True, slots=True)
class Task:
    """``producer``: the same for the same task of the same query, and of nobody else. ``epoch``: number of the batch."""

    producer: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """Rows that this attempt stored, and rows that were there."""

    published: int
    duplicates: int


class Publisher(Protocol):
    """What is needed of a broker."""

    def publish(self, topic: str, messages: Sequence[Sequenced]) -> list[Receipt]: ...

    def record(self, topic: str, msg_id: int) -> Frame: ...


def write_task(publisher: Publisher, task: Task, rows: Sequence[Row]) -> Outcome:
    """
    Args:
        rows: in their total order (``rows.rows_of``).

    Raises: ReplayMismatch. OptionError when there are more rows than numbers. What the broker refuses with.
    """
    if len(rows) >= ROWS_MAX or not 0 <= task.epoch < EPOCHS_MAX:
        raise OptionError(f"{len(rows)} rows in epoch {task.epoch} are more than can be numbered")
    _claim(publisher, task, rows)
    first = task.epoch << 32
    receipts = []
    for topic, numbered in groupby(enumerate(rows, first), lambda pair: pair[1].topic):
        messages = [Sequenced(task.producer, seq, row.body, row.hdr, row.delay_ms, row.ttl_ms) for seq, row in numbered]
        receipts += publisher.publish(topic, messages)
    duplicates = sum(receipt.duplicate for receipt in receipts)
    return Outcome(len(receipts) - duplicates, duplicates)


def _claim(publisher: Publisher, task: Task, rows: Sequence[Row]) -> None:
    claim = {"rows": len(rows), "crc32": f"{checksum(rows):08x}"}
    message = Sequenced(task.producer, task.epoch, json.dumps(claim).encode())
    (receipt,) = publisher.publish(CLAIMS_TOPIC, [message])
    if not receipt.duplicate:
        return
    found = publisher.record(CLAIMS_TOPIC, receipt.msg_id)
    epoch = found.number(ATTRIBUTE_SEQUENCE)
    if found.key != task.producer.encode() or epoch is None:
        raise ReplayMismatch(f"record {receipt.msg_id} of {CLAIMS_TOPIC} is not the claim of {task.producer}")
    if epoch > task.epoch:
        raise ReplayMismatch(f"{task.producer} has gone on to batch {epoch}: this attempt at batch {task.epoch} comes too late")
    before = json.loads(found.payload)
    if before != claim:
        raise ReplayMismatch(
            f"{task.producer}, batch {task.epoch}: this attempt has {claim['rows']} rows with checksum {claim['crc32']}, an "
            f"earlier one had {before.get('rows')} with {before.get('crc32')}, and may have published some of them. The rows "
            "of a batch have to be the same when it is run again: was the query changed, or its number of partitions, or does "
            "it use rand(), a clock, or a source that changes? Another producerId or checkpoint publishes all of the batch anew"
        )


class BrokerPublisher:
    """A broker over the wire. After a lost connection or a refusal that passes, what was not confirmed is said again."""

    def __init__(self, address: BrokerAddress, sleep: Callable[[float], None] = time.sleep) -> None:
        self._address = address
        self._sleep = sleep
        self._client: sync.Client | None = None

    def publish(self, topic: str, messages: Sequence[Sequenced]) -> list[Receipt]:
        """Raises: ToymqError, OSError."""
        receipts: list[Receipt] = []
        failures = 0
        while len(receipts) < len(messages):
            confirmed = len(receipts)
            try:
                for receipt in self._connected().pub_many(topic, messages[confirmed:], window=WINDOW):
                    receipts.append(receipt)
            except (*TRANSIENT, ToymqError) as error:
                self.close()
                if not (isinstance(error, TRANSIENT) or getattr(error, "retryable", False)):
                    raise
                failures = 1 if len(receipts) > confirmed else failures + 1
                if failures > self._address.num_retries:
                    raise
                pause_s = self._address.retry_interval_ms / 1000 * 2 ** (failures - 1)
                logger.warning("publishing to %s is not possible now (%s); trying again in %g s", topic, error, pause_s)
                self._sleep(pause_s)
        return receipts

    def record(self, topic: str, msg_id: int) -> Frame:
        """Raises: ToymqError, OSError."""
        for frame in iter_frames(self._connected().fetch(topic, msg_id, 1).frames):
            if frame.msg_id == msg_id:
                return frame
        raise DamagedData(f"record {msg_id} of {topic} is gone")

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> sync.Client:
        if self._client is None:
            self._client = connect(self._address)
        return self._client
