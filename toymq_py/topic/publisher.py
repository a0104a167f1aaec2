"""Publishing to a topic: deduplication, producer sequences, backlog limit, append.

Contract: delivery.md, "Dedupe"; protocol.md, "PUB"; ADR 0013. Belongs to the event loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import lt

from toymq_py.clock import Clock
from toymq_py.dedupe import DedupeTable, KeyBudget, ProducerTable
from toymq_py.errors import BadArgument, RequestError
from toymq_py.records import Shape
from toymq_py.storage.commit.batch import COMMITTED, Appended, Commit, producers_of
from toymq_py.storage.commit.committer import Committer
from toymq_py.storage.log import Log
from toymq_py.storage.record import FRAME_OVERHEAD, Extras, encode_sequences
from toymq_py.storage.recovery import RecoveredLog
from toymq_py.storage.segment import PRODUCERS_MAX, Producers
from toymq_py.topic.backlog import BacklogLimit
from toymq_py.topic.tracer import Tracer

ATTRIBUTES_BYTES = 64
"""The bytes for a record's attributes: more than they take, except for what is in its headers."""
REMEMBERS_NO_PRODUCER = (
    "dedupe_keys is 0 for this topic: nothing is remembered of a producer; publish without seq"
    " (Python: connect(idempotent=False), toymqctl: pub --no-dedupe), or set dedupe_keys"
)


@dataclass(slots=True)
class Duplicate:
    """``count`` publishes that appended nothing: their key was published before as ``first_id``, which is stored when
    ``commit`` is done."""

    commit: Commit
    first_id: int
    count: int = 1

    @property
    def duplicate(self) -> bool:
        return True

    @property
    def error(self) -> None:
        return None


@dataclass(slots=True)
class Refused:
    """``count`` publishes that were refused with an error."""

    count: int
    error: RequestError

    @property
    def commit(self) -> Commit:
        return COMMITTED

    @property
    def duplicate(self) -> bool:
        return False

    @property
    def first_id(self) -> int:
        return 0


Published = Appended | Duplicate | Refused
"""The outcome of a stretch of one publish run."""


class Publisher:
    """Appends messages to the log of a topic, except duplicates and what the backlog limit refuses."""

    def __init__(
        self,
        log: Log,
        committer: Committer,
        clock: Clock,
        recovered: RecoveredLog,
        *,
        dedupe_keys: int,
        key_budget: KeyBudget,
        keys_kept: int = 0,
    ) -> None:
        """Fill the dedupe and producer tables from the recovered log (recovery, step 7).

        Args:
            dedupe_keys: how many keys this topic remembers, if ``key_budget``, which all topics share, has room for them.
            keys_kept: how many it remembers in any case.
        """
        self.ttl_ms: int | None = None
        """The topic's setting: a message that is published without a ttl of its own expires so long after its append."""
        self._clock = clock
        self.log = log
        self.committer = committer
        self.limit: BacklogLimit | None = None
        """The backlog's limit; None when the topic's settings have none."""
        self.tracer: Tracer | None = None
        """Follows messages that have headers."""
        self.dedupe = DedupeTable(dedupe_keys, key_budget, kept=keys_kept)
        for first_id, keys in recovered.keys:
            self._remember(first_id, keys)
        self.dedupe.settle(recovered.next_id)
        self.producers = ProducerTable(min(self.dedupe.capacity, PRODUCERS_MAX), key_budget)
        self.producers.settle(dict(sorted(recovered.producers.items(), key=lambda item: item[1][1])))

    def _remember(self, first_id: int, keys: Sequence[bytes]) -> None:
        """Enter the keys of records in the log, newer than all entered before."""
        if b"" not in keys and self.dedupe.remember_new(keys, first_id):
            return
        for row, key in enumerate(keys):
            if key:
                self.dedupe.replace(key, first_id + row)

    def resize(self, dedupe_keys: int) -> None:
        """Apply a new ``dedupe_keys`` of the topic."""
        self.dedupe.resize(dedupe_keys)
        self.producers.resize(min(self.dedupe.capacity, PRODUCERS_MAX))

    def release(self, keys: Sequence[bytes]) -> None:
        """Forget these keys, so that a publish with one of them is no duplicate."""
        self.dedupe.forget(keys)
        self.producers.forget(keys)

    def clear(self) -> None:
        """Forget all keys: the topic is deleted, and other topics can use the room."""
        self.dedupe.clear()
        self.producers.clear()

    def committed(self, first_id: int, next_id: int, keys: list[bytes], producers: Producers) -> None:
        """Note that a batch with these keys and producers is stored; see ``CommitListener.committed``."""
        if producers:
            self.producers.settle(producers)
        if keys:
            self.dedupe.settle(next_id)
        if self.limit is not None:
            self.limit.committed(first_id, next_id)

    def failed(self, keys: list[bytes]) -> None:
        """Forget the keys of a refused batch; see ``CommitListener.failed``."""
        self.dedupe.forget(keys)
        self.dedupe.fail()
        self.producers.fail()

    def _extras(
        self,
        count: int,
        headers: Sequence[bytes] | None,
        delays_ms: Sequence[int] | None,
        ttls_ms: Sequence[int] | None,
        ttl_ms: int | None,
    ) -> Extras | None:
        """Headers and times of a run. The times count from the wall clock, not from ``ts_ns``, which never falls when the clock
        is set back."""
        if ttls_ms is None and ttl_ms is not None:
            ttls_ms = [ttl_ms] * count
        if headers is None and delays_ms is None and ttls_ms is None:
            return None
        now_ns = self._clock.wall_ns()
        deliver_at_ns = None if delays_ms is None else [now_ns + ms * 1_000_000 for ms in delays_ms]
        expires_at_ns = None if ttls_ms is None else [now_ns + ms * 1_000_000 for ms in ttls_ms]
        return Extras(headers, deliver_at_ns, expires_at_ns)

    def publish(
        self,
        keys: Sequence[bytes],
        payloads: Sequence[bytes],
        headers: Sequence[bytes] | None = None,
        delays_ms: Sequence[int] | None = None,
        ttls_ms: Sequence[int] | None = None,
        *,
        topic_ttl: bool = True,
        shape: Shape | None = None,
    ) -> Sequence[Published]:
        """Append a run of messages; duplicates append nothing.

        Args:
            keys: b"" for none.
            headers: header blocks, b"" for none.
            delays_ms: how long each waits before its delivery; at most ten years.
            ttls_ms: how long after its append each expires, delayed or not; the topic's ``ttl`` when None.
            topic_ttl: False for what never expires (a dead letter on its way back), whatever the topic's ``ttl``.
            shape: the lengths that all keys and all payloads have in common, if the caller knows them.

        Returns: outcomes that cover the run in order.
        """
        extras = self._extras(len(keys), headers, delays_ms, ttls_ms, self.ttl_ms if topic_ttl else None)
        dedupe = self.dedupe
        keyless = keys.count(b"") if shape is None else 0 if shape[0] else len(keys)
        if keyless == len(keys) or not dedupe.capacity:
            return self._append(keys, payloads, extras, shape)
        producers = self.producers if self.producers and self.producers.any_of(keys) else None
        if (
            producers is None
            and not keyless
            and (self.limit is None or self._fits(keys, payloads, extras))
            and dedupe.remember_new(keys, self.committer.next_id)
        ):
            return self._append(keys, payloads, extras, shape, remembered=True)
        outcomes: list[Published] = []
        start = 0
        fresh: set[bytes] = set()

        def flush(stop: int) -> None:
            nonlocal start
            if stop > start:
                rows = slice(start, stop)
                outcomes.extend(self._append(keys[rows], payloads[rows], extras and extras.part(rows), shape))
            start = stop
            fresh.clear()

        for row, key in enumerate(keys):
            if not key:
                continue
            if producers is not None and producers.find(key, self.log.first_id) is not None:
                flush(row)
                outcomes.append(Refused(1, BadArgument("this key names a producer: publish with seq")))
                start = row + 1
                continue
            if key in fresh:
                flush(row)
            msg_id = dedupe.find(key)
            if msg_id is None or msg_id < self.log.first_id:
                fresh.add(key)
                continue
            flush(row)
            dedupe.touch(key)
            commit = COMMITTED if msg_id < self.log.committed_id else self.committer.commit_of(msg_id)
            outcomes.append(Duplicate(commit, msg_id))
            start = row + 1
        flush(len(keys))
        return outcomes

    def publish_unlimited(
        self, keys: Sequence[bytes], payloads: Sequence[bytes], headers: Sequence[bytes] | None = None
    ) -> Sequence[Published]:
        """Publish for the broker itself: as ``publish``, without backlog limit and ttl of the topic."""
        limit, self.limit = self.limit, None
        try:
            return self.publish(keys, payloads, headers, topic_ttl=False)
        finally:
            self.limit = limit
            if limit is not None:
                limit.recount()

    def publish_sequenced(
        self,
        producers: Sequence[bytes],
        payloads: Sequence[bytes],
        headers: Sequence[bytes] | None,
        sequences: Sequence[int],
        delays_ms: Sequence[int] | None = None,
        ttls_ms: Sequence[int] | None = None,
    ) -> Sequence[Published]:
        """Append a run of messages, each with a producer's name in its key and a sequence number. A number not above the
        producer's highest appends nothing. Stops at the first refused one; the caller must refuse or repeat the rest.

        Returns: outcomes that cover the run in order, up to the first refused one.
        """
        if not self.dedupe.capacity:
            return [Refused(1, BadArgument(REMEMBERS_NO_PRODUCER))]
        extras = self._extras(len(producers), headers, delays_ms, ttls_ms, self.ttl_ms)
        first_id, committed_id = self.log.first_id, self.log.committed_id
        if producers.count(producers[0]) == len(producers) and all(map(lt, sequences, islice(sequences, 1, None))):
            known = self.producers.find(producers[0], first_id)
            if known is not None and sequences[0] > known[0]:  # the usual run: one producer goes on
                return self._append_sequenced(producers, payloads, extras, sequences)
        outcomes: list[Published] = []
        start = 0
        fresh: dict[bytes, int] = {}

        def flush(stop: int) -> bool:
            """Append the fresh rows. Returns: whether they were refused."""
            nonlocal start
            if stop > start:
                rows = slice(start, stop)
                part = extras and extras.part(rows)
                outcomes.extend(self._append_sequenced(producers[rows], payloads[rows], part, sequences[rows]))
            start = stop
            fresh.clear()
            return bool(outcomes) and outcomes[-1].error is not None

        for row, (producer, sequence) in enumerate(zip(producers, sequences, strict=True)):
            highest = fresh.get(producer)
            if highest is None:
                known = self.producers.find(producer, first_id)
                if known is None:
                    plain_id = self.dedupe.find(producer)
                    if plain_id is not None and plain_id >= first_id:
                        if not flush(row):
                            mixed = BadArgument("this key was published without seq: it names no producer")
                            outcomes.append(Refused(1, mixed))
                        return outcomes
                highest = -1 if known is None else known[0]
            if sequence > highest:
                fresh[producer] = sequence
                continue
            if flush(row):
                return outcomes
            entry = self.producers.committed(producer, first_id)
            if entry is not None and sequence <= entry[0]:
                self.producers.touch(producer)
            else:
                entry = self.producers.find(producer, first_id)
            assert entry is not None
            msg_id = entry[1]
            commit = COMMITTED if msg_id < committed_id else self.committer.commit_of(msg_id)
            last = outcomes[-1] if outcomes else None
            if type(last) is Duplicate and last.first_id == msg_id:
                last.count += 1
            else:
                outcomes.append(Duplicate(commit, msg_id))
            start = row + 1
        flush(len(producers))
        return outcomes

    def highest_sequence(self, producer: bytes) -> int:
        """The highest appended sequence of a producer; -1 for none."""
        found = self.producers.find(producer, self.log.first_id)
        return -1 if found is None else found[0]

    def _append_sequenced(
        self, producers: Sequence[bytes], payloads: Sequence[bytes], extras: Extras | None, sequences: Sequence[int]
    ) -> Sequence[Published]:
        blocks = encode_sequences(sequences) if extras is None else extras.encode(sequences)
        if self.limit is None or self._fits(producers, payloads, extras):
            return self._store_sequenced(producers, payloads, blocks, extras, sequences)
        admitted, refused, refusal = self.limit.admit(_sizes(producers, payloads, blocks))
        outcomes: list[Published] = []
        if admitted:
            rows = slice(admitted)
            part = extras and extras.part(rows)
            outcomes += self._store_sequenced(producers[rows], payloads[rows], blocks[rows], part, sequences[rows])
            if outcomes[-1].error is not None:
                return outcomes
        if refusal is not None:
            outcomes.append(Refused(refused, refusal))
        return outcomes

    def _store_sequenced(
        self,
        producers: Sequence[bytes],
        payloads: Sequence[bytes],
        blocks: Sequence[bytes],
        extras: Extras | None,
        sequences: Sequence[int],
    ) -> Sequence[Published]:
        try:
            appended = self.committer.append(producers, payloads, blocks, extras, sequences)
        except RequestError as error:
            return [Refused(len(producers), error.bare())]
        self.producers.remember(producers_of(producers, sequences, appended[0].first_id))
        if extras is not None and extras.headers is not None and self.tracer is not None:
            self.tracer.appended(self.log.topic, appended, extras.headers)
        return appended

    def _append(
        self,
        keys: Sequence[bytes],
        payloads: Sequence[bytes],
        extras: Extras | None,
        shape: Shape | None,
        *,
        remembered: bool = False,
    ) -> Sequence[Published]:
        """Append a run as far as the backlog limit admits it. ``remembered``: its keys are in the dedupe table already, under
        the ids they get here."""
        blocks = None if extras is None else extras.encode()
        if self.limit is None or remembered or self._fits(keys, payloads, extras):
            return self._store(keys, payloads, blocks, extras, shape, remembered=remembered)
        outcomes: list[Published] = []
        sizes = _sizes(keys, payloads, blocks)
        start = 0
        while start < len(keys):
            admitted, refused, refusal = self.limit.admit(sizes[start:])
            if admitted:
                rows = slice(start, start + admitted)
                part = extras and extras.part(rows)
                outcomes += self._store(keys[rows], payloads[rows], blocks and blocks[rows], part, shape, remembered=False)
            if refusal is not None:
                outcomes.append(Refused(refused, refusal))
            start += admitted + refused
        return outcomes

    def _fits(self, keys: Sequence[bytes], payloads: Sequence[bytes], extras: Extras | None) -> bool:
        """Whether the backlog limit surely admits the whole run; False may only mean that an exact count is needed."""
        if self.limit is None:
            return True
        size = (FRAME_OVERHEAD + ATTRIBUTES_BYTES) * len(keys) + sum(map(len, keys)) + sum(map(len, payloads))
        headers = extras.headers if extras is not None else None
        return self.limit.fits(len(keys), size + (sum(map(len, headers)) if headers is not None else 0))

    def _store(
        self,
        keys: Sequence[bytes],
        payloads: Sequence[bytes],
        blocks: Sequence[bytes] | None,
        extras: Extras | None,
        shape: Shape | None,
        *,
        remembered: bool,
    ) -> Sequence[Published]:
        try:
            appended = self.committer.append(keys, payloads, blocks, extras, shape=shape)
        except Exception as error:
            if remembered:
                self.dedupe.withdraw(keys)
            if not isinstance(error, RequestError):
                raise
            return [Refused(len(keys), error.bare())]
        if not remembered and self.dedupe.capacity:
            self._remember(appended[0].first_id, keys)
        if extras is not None and extras.headers is not None and self.tracer is not None:
            self.tracer.appended(self.log.topic, appended, extras.headers)
        return appended


def _sizes(keys: Sequence[bytes], payloads: Sequence[bytes], blocks: Sequence[bytes] | None) -> list[int]:
    """Encoded size of each record in bytes."""
    sizes = [FRAME_OVERHEAD + len(key) + len(payload) for key, payload in zip(keys, payloads, strict=True)]
    return sizes if blocks is None else [size + len(block) for size, block in zip(sizes, blocks, strict=True)]
