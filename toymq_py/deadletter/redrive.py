"""REDRIVE: dead letters go back to the topic they came from, for the consumer that failed them.

Contract: delivery.md, "Attempts" (REDRIVE); ADR 0023. A letter that is stored in that topic again is acked for the consumer
``#redrive`` of the dead-letter topic, and never goes back twice; the key of the new record sees to it that a kill in between
makes no second copy. Belongs to the event loop.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from toymq_py.deadletter.ledger import MoveLedger
from toymq_py.deadletter.transfer import SLICE_ROWS_MAX, UNSTORED_MAX, RecordReader, TransferBatch, is_redriven_letter
from toymq_py.disk_errors import BeingFetched
from toymq_py.errors import InternalError, NoSuchTopic, RequestError
from toymq_py.letter import Return, return_of
from toymq_py.records import IdRange
from toymq_py.storage.commit.sync_threads import Scheduler
from toymq_py.topic import Appended, Published, Topic

logger = logging.getLogger("toymq_py.deadletter")

RedriveDone = Callable[[int, OSError | RequestError | None], None]
"""Called with the number of messages that went back durably, and the error if not all that were asked for did."""


class Redrive:
    """One REDRIVE: moves back the letters that are there when it begins, a batch at a time."""

    def __init__(
        self,
        letters: Topic,
        ledger: MoveLedger,
        *,
        ids: Sequence[IdRange] | None,
        max_count: int | None,
        origin: Callable[[], Topic],
        scheduler: Scheduler,
        done: RedriveDone,
    ) -> None:
        """
        Args:
            ids: of the letters; None for all.
            origin: returns the topic that the letters came from; raises RequestError when there is none and it cannot be
                created.
        """
        self.stopping: RequestError | None = None
        """Why the redrive ends with the slice that is on its way."""
        self._letters = letters
        self._ledger = ledger
        self._origin = origin
        self._scheduler = scheduler
        self._done = done
        log = letters.log
        wanted = ids if ids is not None else ((log.first_id, log.committed_id - 1),)
        self._ranges = [(max(first, log.first_id), min(last, log.committed_id - 1)) for first, last in reversed(wanted)]
        self._left = max_count if max_count is not None else log.committed_id - log.first_id
        self._reader = RecordReader(letters)
        self._count = 0
        self._unstored = 0

    def start(self) -> None:
        self._scheduler.soon(self._next)

    def _next(self) -> None:
        letters = self._letters
        if letters.deleted:
            self._done(self._count, NoSuchTopic(f"{letters.name} was deleted"))
            return
        if self.stopping is not None:
            self._done(self._count, self.stopping)
            return
        ranges = list(self._ranges)
        try:
            origin = self._origin()
            # No more at a time than whose keys it remembers for sure: a kill finds all that is not stored as acked among them.
            unstored_max = max(min(UNSTORED_MAX, origin.publisher.dedupe.capacity // 4), 1)
            if self._unstored >= unstored_max:
                letters.flush_offsets(self._offsets_stored)
                return
            batch = TransferBatch(min(SLICE_ROWS_MAX, unstored_max))
            returns: list[Return] = []
            while self._left > len(batch.ids) and self._ranges and not batch.full:
                self._collect(batch, returns)
            if not batch.ids:
                self._finish()
                return
            _free_keys(origin, returns)
            batch.append_to(origin, partial(self._stored, origin, batch.ids, returns), self._slice_done)
        except BeingFetched as busy:
            self._ranges = ranges
            if busy.problem is None:
                busy.when_done(self.start)
            else:
                self._done(self._count, busy)
        except (RequestError, OSError) as error:
            self._done(self._count, error)
        except Exception:
            logger.exception("bug in REDRIVE of %s", letters.name)
            # Nothing else would end it: others that ask, and the end of the broker, wait for this one.
            self._done(self._count, InternalError())

    def _collect(self, batch: TransferBatch, returns: list[Return]) -> None:
        """Add dead letters of the next id range to the batch, and to ``returns`` what each becomes in its origin. Raises:
        OSError."""
        redrive_consumer = self._letters.redrive_consumer.consumer()
        first, last = self._ranges.pop()
        while (span := redrive_consumer.next_unacked(first, last + 1)) is not None:
            at = span[0]
            if batch.full or self._left <= len(batch.ids):
                self._ranges.append((at, last))
                return
            run, row = self._reader.find(at)
            if run is None:
                first = row  # lost, or cannot be read now
                continue
            back = return_of(self._letters.name, run, row)
            batch.add(at, back.key, back.payload, back.headers)
            returns.append(back)
            first = at + 1

    def _stored(
        self, origin: Topic, ids: Sequence[int], returns: Sequence[Return], start: int, stop: int, outcome: Published
    ) -> None:
        if isinstance(outcome, Appended):
            for row in range(start, stop):
                if returns[row].consumer:
                    origin.skip_for_others(outcome.first_id + row - start, returns[row].consumer.decode())
        self._ledger.add(origin, outcome.first_id)
        self._count += self._letters.mark_redriven(ids[start:stop])
        self._unstored += stop - start
        self._left -= stop - start

    def _slice_done(self, refused: RequestError | None) -> None:
        if refused is not None:
            self._done(self._count, refused)
        else:
            self._scheduler.soon(self._next)

    def _offsets_stored(self, error: OSError | RequestError | None) -> None:
        if error is not None:
            self._done(self._count, error)
            return
        self._unstored = 0
        self._scheduler.soon(self._next)

    def _finish(self) -> None:
        if self._unstored:
            self._letters.flush_offsets(lambda error: self._done(self._count, error))
        else:
            self._done(self._count, None)


def _free_keys(origin: Topic, returns: Sequence[Return]) -> None:
    """Release the dedupe keys of letters that a client has used for another record since: otherwise the letter would count as a
    duplicate of that record.
    Raises: OSError."""
    publisher, first_id, reading = origin.publisher, origin.log.first_id, RecordReader(origin)
    taken = []
    for back in returns:
        msg_id = publisher.dedupe.find(back.key)
        foreign = msg_id is not None and msg_id >= first_id and not is_redriven_letter(origin, reading, msg_id, back)
        if foreign or publisher.producers.any_of((back.key,)):
            taken.append(back.key)
    if taken:
        publisher.release(taken)
