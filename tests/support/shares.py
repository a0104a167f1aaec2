"""For tests with thousands of cases: ``make test`` tries some of them, ``make torture`` all."""

import os

import pytest

PROFILE = os.environ.get("TOYMQ_HYPOTHESIS", "seeded")
"""``seeded``: the first examples of each property, a third or fewer. ``full``: all of them. ``explore``: as many, and others
each time."""


def one_in(number: int) -> pytest.MarkDecorator:
    """Give a test the argument ``share``: it tries one case in ``share``, which is ``number`` in ``make test`` and 1 in ``make
    torture``."""
    every = pytest.param(1, id="every-one", marks=pytest.mark.torture)
    return pytest.mark.parametrize("share", [pytest.param(number, id=f"one-in-{number}"), every])


def seeds(some: int, every: int) -> list[object]:
    """Return parameter values below ``every``. ``make test`` runs the first ``some``, ``make torture`` the others."""
    return [*range(some), *(pytest.param(seed, marks=pytest.mark.torture) for seed in range(some, every))]


def examples(number: int, share: int = 3) -> int:
    """Return how many examples of a property this run tries: of ``number`` in all, ``make test`` tries one in ``share``."""
    return -(-number // share) if PROFILE == "seeded" else number
