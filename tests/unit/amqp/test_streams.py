"""A stream of AMQP is read past records that were evicted to the bucket; the rest is in tests/e2e/amqp/test_streams.py."""

from tests.support.buckets import MemoryBucket
from tests.support.tiers import PAYLOAD, TierRig
from toymq_py.amqp.streams import StreamReader


def test_a_reader_waits_for_a_segment_that_is_in_the_bucket_alone() -> None:
    rig = TierRig(MemoryBucket())
    assert rig.change("create", "t", tier_local_bytes="0") == "OK"
    rig.publish("t", *[b"%d " % n + PAYLOAD for n in range(40)])
    rig.rounds(3)
    woken: list[bool] = []
    reader = StreamReader(rig.broker.topic("t"), 0, 1000, lambda: woken.append(True))
    found: list[int] = []
    for _ in range(40):
        while (rows := reader.read(1 << 20, 100)) is not None:
            run, start, stop = rows
            found += run.ids[start:stop]
        if found and found[-1] == 39:
            break
        woken.clear()
        rig.advance(1)
        assert woken == [True]
    assert found == list(range(40))
    reader.closed = True
