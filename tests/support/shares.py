"""Tests of thousands of cases: ``make test`` tries some of them, ``make torture`` every one."""

import pytest


def one_in(number: int) -> pytest.MarkDecorator:
    """Gives the test an argument ``share``: try one case in so many. It is 1 in ``make torture``."""
    every = pytest.param(1, id="every-one", marks=pytest.mark.torture)
    return pytest.mark.parametrize("share", [pytest.param(number, id=f"one-in-{number}"), every])
