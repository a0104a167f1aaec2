"""A SEEK to a time whose records are in a bucket only waits for them."""

from tests.support.buckets import MemoryBucket
from tests.support.tiers import PAYLOAD, TierRig
from toymq_py.consumer_options import Start
from toymq_py.errors import RequestError
from toymq_py.protocol import commands
from toymq_py.session.seek import seeking
from toymq_py.tier.bucket import BucketError


def evicted() -> tuple[TierRig, MemoryBucket, int]:
    """Return a broker with evicted segments, its bucket, and a time in milliseconds at which only record 22 decides."""
    rig = TierRig(bucket := MemoryBucket())
    assert rig.change("create", "t", tier_local_bytes="0") == "OK"
    at_ms = 0
    for n in range(40):
        rig.clock.advance(1)
        at_ms = rig.clock.wall_ns() // 1_000_000 if n == 22 else at_ms
        rig.publish("t", b"%d" % n + PAYLOAD)
    rig.rounds(3)
    return rig, bucket, at_ms


def test_it_is_answered_when_the_segment_was_fetched() -> None:
    rig, _, at_ms = evicted()
    begin, answer = seeking(rig.broker, commands.Seek("t", "c", Start("time", at_ms), True))
    told: list[OSError | RequestError | None] = []
    begin(told.append)
    assert told == []
    rig.advance(1)
    assert told == [None]
    assert answer() == b"OK 22\n"
    assert rig.take(rig.subscribe("t"))[0][0] == 22


def test_a_bucket_that_fails_refuses_it() -> None:
    rig, bucket, at_ms = evicted()

    def failing(key: str) -> bytes | None:
        raise BucketError("the bucket: no route to host")

    bucket.get = failing  # type: ignore[method-assign]
    begin, _ = seeking(rig.broker, commands.Seek("t", "c", Start("time", at_ms), True))
    told: list[OSError | RequestError | None] = []
    begin(told.append)
    rig.advance(1)
    (error,) = told
    assert isinstance(error, OSError)
    assert "no route to host" in str(error)
    assert "c" not in rig.broker.topic("t").channels
