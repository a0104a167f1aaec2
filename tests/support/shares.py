"""Tests of thousands of cases: ``make test`` tries some of them, ``make torture`` every one."""

import os

import pytest

PROFILE = os.environ.get("TOYMQ_HYPOTHESIS", "seeded")
"""``seeded``: the first examples of each property, a third or fewer. ``full``: all of them. ``explore``: as many, and others
each time."""


def one_in(number: int) -> pytest.MarkDecorator:
    """Gives the test an argument ``share``: try one case in so many. It is 1 in ``make torture``."""
    every = pytest.param(1, id="every-one", marks=pytest.mark.torture)
    return pytest.mark.parametrize("share", [pytest.param(number, id=f"one-in-{number}"), every])


def seeds(some: int, every: int) -> list[object]:
    """Values of a parameter: numbers below ``every``. ``make test`` takes the first ``some``, ``make torture`` the others."""
    return [*range(some), *(pytest.param(seed, marks=pytest.mark.torture) for seed in range(some, every))]


def examples(number: int, share: int = 3) -> int:
    """How many examples of a property this run tries, where all are ``number``: ``make test`` one in ``share``."""
    return -(-number // share) if PROFILE == "seeded" else number
