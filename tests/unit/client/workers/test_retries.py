"""Retries of a job: how often, and after which delays."""

from random import Random

import pytest

from toymq.workers.retries import JITTER, Retries
from toymq_py.errors import BadArgument


def test_the_delay_doubles_from_the_first_to_the_longest() -> None:
    retries = Retries.checked(5, "1s..10s", ())
    found = [retries.delay_s(attempt, Random(1)) or 0.0 for attempt in range(1, 8)]
    for delay_s, least_s in zip(found, [1, 2, 4, 8, 10, 10, 10], strict=True):
        assert least_s <= delay_s <= least_s * (1 + JITTER)
    assert retries.delay_s(10**6, Random(1)) is not None  # no overflow


@pytest.mark.parametrize("backoff", ["5s", 5, 5.0])
def test_one_duration_is_the_delay_of_each_retry(backoff: object) -> None:
    retries = Retries.checked(None, backoff, ())
    assert all(5 <= (retries.delay_s(attempt, Random(2)) or 0.0) <= 5 * (1 + JITTER) for attempt in (1, 2, 50))


def test_without_a_backoff_the_topic_has_one() -> None:
    assert Retries.checked(3, None, ()).delay_s(1, Random(1)) is None


def test_the_last_retry_and_what_comes_behind_it() -> None:
    retries = Retries.checked(2, None, ())
    assert [retries.is_last(attempt) for attempt in (1, 2, 3, 4)] == [False, False, True, True]
    assert [retries.is_used_up(attempt) for attempt in (1, 2, 3, 4)] == [False, False, False, True]


def test_without_a_number_the_topic_says_which_is_the_last() -> None:
    retries = Retries.checked(None, None, ())
    assert (retries.is_last(10**6), retries.is_used_up(10**6)) == (False, False)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((-1, None, ()), BadArgument, "retries is a whole number from 0"),
        (("3", None, ()), TypeError, "retries is a whole number, not '3'"),
        ((1, "1m..1s", ()), BadArgument, "\"1s..1m\" say, the shorter first, not '1m..1s'"),
        ((1, "soon", ()), BadArgument, "backoff: invalid duration 'soon'"),
        ((1, "1s-1m", ()), BadArgument, "backoff is a duration or a range of them, \"1s..1m\" say"),
        ((1, "5", ()), BadArgument, "backoff needs a unit"),
        ((1, 0, ()), BadArgument, "backoff is a duration in seconds, from 0.001"),
        ((1, None, "ValueError"), TypeError, "dead_on is an exception's class"),
        ((1, None, (ValueError, SystemExit)), TypeError, "dead_on is for subclasses of Exception, not SystemExit: it ends"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: tuple[object, object, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as refused:
        Retries.checked(*arguments)  # type: ignore[arg-type]
    assert text in str(refused.value)
