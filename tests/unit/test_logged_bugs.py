"""A hook of tests/conftest.py for every test: a bug that was only logged fails it."""

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests import conftest


def teardown(marker: object) -> None:
    """Run the hook around fixtures that do nothing."""
    hook = conftest.pytest_runtest_teardown(cast(Any, SimpleNamespace(get_closest_marker=lambda name: marker)))
    next(hook)
    with pytest.raises(StopIteration):
        next(hook)


def log_a_bug() -> None:
    try:
        int("of a callback")
    except ValueError:
        logging.getLogger("toymq_py.broker").exception("a bug in a callback")


def test_a_bug_that_is_only_logged_fails_its_test_and_no_other() -> None:
    log_a_bug()
    with pytest.raises(pytest.fail.Exception, match="a bug in a callback: ValueError"):
        teardown(None)
    assert conftest.BUGS.found == []
    teardown(None)


@pytest.mark.provokes_bugs
def test_a_test_may_provoke_one() -> None:
    log_a_bug()
    assert len(conftest.BUGS.found) == 1
    teardown(object())
