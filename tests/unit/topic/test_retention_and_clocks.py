"""Retention while the wall clock is ahead. ADR 0219."""

import pytest

from tests.support.backups import contents
from tests.support.broker_rig import BrokerRig
from toymq_py.believed_time import BELIEVED_AFTER_S

TEN_YEARS_S = 3650 * 86400


def limited(**settings: object) -> BrokerRig:
    rig = BrokerRig()
    assert rig.change("create", "t", **{name: str(value) for name, value in settings.items()}) == "OK"
    return rig


@pytest.mark.parametrize("ahead_s", [7200, TEN_YEARS_S])
def test_a_clock_that_is_ahead_for_a_moment_drops_nothing(ahead_s: int, caplog: pytest.LogCaptureFixture) -> None:
    """Found: of 20 messages that were a second old, 18 were dropped, since their age was judged by one reading of the wall
    clock."""
    rig = limited(retain_max_age=3600_000)
    for _ in range(20):
        rig.publish("t", b"x" * 1000)
    rig.clock.jump_wall(ahead_s)
    for _ in range(10):
        rig.publish("t", b"x" * 1000)
        rig.advance(1)
    rig.clock.jump_wall(-ahead_s)
    rig.publish("t", b"x")
    rig.advance(300)
    assert rig.numbers("t")["dropped_total"] == 0
    assert rig.broker.topic("t").log.first_id == 0
    assert sum("the wall clock jumped ahead" in record.getMessage() for record in caplog.records) == 1


def test_a_clock_that_stays_ahead_keeps_nothing_for_ever() -> None:
    """The clock was corrected after a boot. The only event is the time at which it is believed."""
    rig = limited(retain_max_age=3600_000)
    for _ in range(8):
        rig.publish("t", b"x" * 1000)
    rig.clock.jump_wall(TEN_YEARS_S)
    for _ in range(4):
        rig.publish("t", b"y" * 1000)
    rig.advance(BELIEVED_AFTER_S - 1)
    assert rig.broker.topic("t").log.first_id == 0
    rig.advance(2)
    first_id = rig.broker.topic("t").log.first_id
    assert 0 < first_id <= 8, "what was stored under the new time stays"
    rig.advance(5000)
    rig.advance(5000)
    assert rig.broker.topic("t").log.first_id == 12


def test_acked_and_expired_segments_wait_for_a_clock_that_is_ahead() -> None:
    rig = BrokerRig(retain_acked_for_ms=3600_000)
    assert rig.change("create", "ttl", ttl="3600000") == "OK"
    subscription = rig.subscribe("t")
    rig.subscribe("ttl").close()
    for _ in range(12):
        rig.publish("t", b"x" * 1000)
        rig.publish("ttl", b"x" * 1000)
    rig.take(subscription)
    rig.ack("t", 0, 11)
    rig.clock.jump_wall(7200)
    rig.publish("ttl", b"x" * 1000)
    rig.flush("t")
    for name in ("t", "ttl"):
        rig.broker.topic(name).retention.apply()
    rig.advance(BELIEVED_AFTER_S - 1)
    assert [rig.broker.topic(name).log.first_id for name in ("t", "ttl")] == [0, 0]
    assert rig.numbers("ttl")["expired_total"] == 0
    rig.advance(2)
    assert rig.broker.topic("t").log.first_id > 0


def test_segments_leave_the_disk_for_the_bucket_by_the_believed_time_too() -> None:
    rig = limited(tier_local_age=3600_000)
    for _ in range(8):
        rig.publish("t", b"x" * 1000)
    retention = rig.broker.topic("t").retention
    rig.clock.jump_wall(TEN_YEARS_S)
    assert retention.evictable() == []
    rig.advance(BELIEVED_AFTER_S)
    assert retention.evictable() != []


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("right", ["before", "between", "in it"])
def test_a_clock_that_was_ahead_and_then_behind_drops_nothing_that_is_young(right: str, restart: bool) -> None:
    """Found: messages stored while the clock was ahead got the age of those stored while it was behind, and were removed
    minutes old."""
    rig = limited(retain_max_age=7 * 86400_000)
    if right == "before":
        rig.publish("t", b"right")
        rig.clock.jump_wall(TEN_YEARS_S)
        rig.reopen()
        rig.broker.topic("t").committer.begin_segment()
    else:
        if right == "in it":
            rig.publish("t", b"right")
        rig.clock.jump_wall(TEN_YEARS_S)
    rig.publish("t", b"ahead")
    rig.clock.jump_wall(-TEN_YEARS_S)
    if right == "between":
        rig.publish("t", b"right")
    rig.clock.jump_wall(-TEN_YEARS_S)
    rig.reopen()
    rig.publish("t", b"behind")
    rig.advance(1)
    rig.clock.jump_wall(TEN_YEARS_S)
    if restart:
        rig.reopen()
    rig.publish("t", b"right again")
    for _ in range(3):
        rig.advance(1200)
        rig.broker.topic("t").retention.apply()
    assert {*contents(rig, "t").values()} >= {b"right", b"ahead", b"right again"}, "all that the clock behind has not dated"
    rig.advance(8 * 86400)
    rig.broker.topic("t").retention.apply()
    assert rig.broker.topic("t").log.first_id == 4
