"""A rate limit: bursts, and the rate after them."""

from tests.support.fake_clock import FakeClock
from toymq_py.token_bucket import TokenBucket


def test_a_burst_and_then_the_rate() -> None:
    clock = FakeClock()
    bucket = TokenBucket(clock, 3, 0.5)
    for _ in range(3):
        assert bucket.wait_s() == 0
        bucket.take()
    assert bucket.wait_s() == 2
    clock.advance(1.5)
    assert bucket.wait_s() == 0.5
    clock.advance(0.5)
    assert bucket.wait_s() == 0


def test_what_is_taken_before_its_time_is_owed() -> None:
    clock = FakeClock()
    bucket = TokenBucket(clock, 1, 0.5)
    bucket.take()
    bucket.take()
    assert bucket.wait_s() == 4


def test_rest_saves_up_no_more_than_a_burst() -> None:
    clock = FakeClock()
    bucket = TokenBucket(clock, 2, 0.5)
    clock.advance(3600)
    bucket.wait_s()
    for _ in range(2):
        bucket.take()
    assert bucket.wait_s() == 2
