"""A broker on the simulated disk with a tier in a bucket, and restores from that bucket."""

from contextlib import suppress
from typing import Any

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.buckets import Killed, MemoryBucket
from toymq_py.disk_errors import BeingFetched
from toymq_py.records import Records
from toymq_py.runtime.tier_thread import evict, look_at, place_of
from toymq_py.storage import checked_json
from toymq_py.storage.log import Log
from toymq_py.tier.bucket import Bucket, BucketError
from toymq_py.tier.check import check
from toymq_py.tier.cold import DIRECTORY_NAME, ColdReads
from toymq_py.tier.keys import Place
from toymq_py.tier.restore import restore
from toymq_py.tier.restore_topic import Restored
from toymq_py.tier.uploads import Round, Uploads

AGAIN = "/data/again"
PAYLOAD = bytes(700)
"""Five of them fill a segment."""


class TierRig(BrokerRig):
    """A broker with a tier, for tests."""

    def __init__(self, bucket: Bucket, *, cache_bytes: int = 1 << 30, **options: Any) -> None:
        self.bucket = bucket
        self.cache_bytes = cache_bytes
        super().__init__(**options)
        self.uploads = self.another_process()

    def restart(self, *, again: bool = False) -> None:
        super().restart(again=again)
        self.cold = ColdReads(
            self.disk, self.bucket, f"{self.options.data_dir}/{DIRECTORY_NAME}", cache_bytes=self.cache_bytes,
            files=self.broker.files, metrics=self.broker.metrics, place_of=lambda topic: place_of(self.broker, topic),
            offload=self.loop.offload, later=self.loop.later,
        )  # fmt: skip
        self.broker.files.cold = self.cold

    def another_process(self) -> Uploads:
        return Uploads(self.disk, self.bucket, self.clock.wall_ns)

    def round(self) -> Round:
        """Do one round of the tier's work, as its thread does. Raises: BucketError, Killed."""
        self.advance(20)
        look_at(self.broker)  # makes the incarnations
        self.loop.drain()
        done = self.uploads.round(*look_at(self.broker))
        evict(self.broker, done.proven)
        self.loop.drain()
        return done

    def away(self, topic: str = "t") -> list[int]:
        """Return the first ids of the segments that are only in the bucket."""
        return [segment.base_id for segment in self.broker.topic(topic).log.segments if segment.sha256 is not None]

    def read(self, log: Log, at: int) -> tuple[Records | None, int, int]:
        for _ in range(100):
            try:
                return super().read(log, at)
            except BeingFetched:
                self.advance(10)
        raise AssertionError(f"{at} is not fetched")

    def rounds(self, count: int) -> None:
        """Do rounds, which may fail, or kill their process."""
        for _ in range(count):
            try:
                with suppress(BucketError):
                    self.round()
            except Killed:
                self.uploads = self.another_process()

    def place(self, topic: str = "t") -> Place:
        incarnation = self.broker.topic(topic).settings_queue.incarnation
        assert incarnation is not None
        return Place(topic, incarnation)

    def sealed_below(self, topic: str = "t") -> int:
        """Return the first id that is not in a sealed segment."""
        return self.broker.topic(topic).log.segments[-1].base_id

    def findings(self, *, repair: bool = False) -> list[str]:
        return [found.text for found in check(self.disk, self.bucket, DIR, repair=repair)]

    def restored(self, at_ns: int | None = None) -> tuple[BrokerRig, dict[str, Restored]]:
        """Return a broker on what a restore of the bucket gives."""
        restored = restore(self.disk, self.bucket, AGAIN, pid=1, now_ns=self.clock.wall_ns(), at_ns=at_ns)
        return BrokerRig(disk=self.disk, data_dir=AGAIN), {each.place.topic: each for each in restored}


def filled() -> tuple[TierRig, MemoryBucket]:
    """Return a broker with two sealed segments (ids 0 to 9), two records that are not sealed, a consumer that has acked 0 to 6,
    and settings; and its bucket."""
    rig = TierRig(bucket := MemoryBucket())
    assert rig.change("create", "t", visibility="7000") == "OK"
    rig.publish("t", *[b"%d" % n + PAYLOAD for n in range(12)])
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 6)
    rig.round()
    return rig, bucket


def unnamed(seal: bytes) -> bytes:
    """Convert a seal to its form before 2026-11-29."""
    value = checked_json.decode("seal", seal)
    return checked_json.encode("seal", {name: value[name] for name in ("next_id", "bytes", "sha256")})


def exchange(bucket: MemoryBucket, one: Place, other: Place, *kinds: str) -> None:
    """Exchange the objects of two topics, of kinds such as ``log``, ``seal`` or ``state``, in the order of their keys."""

    def keys(place: Place) -> list[str]:
        found = sorted(key for key in bucket.objects if key.startswith("/".join(place)))
        return [key for key in found if any(kind in key.rpartition("/")[2] for kind in kinds)]

    for a, b in zip(keys(one), keys(other), strict=True):
        bucket.objects[a], bucket.objects[b] = bucket.objects[b], bucket.objects[a]
