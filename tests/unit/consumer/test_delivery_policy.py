"""The back-off of redeliveries by attempt."""

import pytest

from toymq_py.consumer import DeliveryPolicy


def test_default_backoff_doubles_from_100_ms_to_30_s() -> None:
    policy = DeliveryPolicy()
    got = [policy.backoff_s(n) for n in range(1, 12)]
    want = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
    assert got == pytest.approx(want)


def test_attempts_without_end_stay_at_the_maximum() -> None:
    assert DeliveryPolicy().backoff_s(10**9) == 30.0


def test_a_delivery_that_was_not_counted_rests_the_minimum() -> None:
    assert DeliveryPolicy().backoff_s(0) == 0.1


def test_the_maximum_wins_over_a_larger_minimum() -> None:
    policy = DeliveryPolicy(nack_backoff_min_s=5.0, nack_backoff_max_s=1.0)
    assert policy.backoff_s(1) == 1.0
