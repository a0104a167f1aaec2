"""Every callback of an event is called."""

import logging

import pytest

from toymq_py.callbacks import call_all


@pytest.mark.provokes_bugs
def test_one_that_raises_keeps_no_other_from_being_called(caplog: pytest.LogCaptureFixture) -> None:
    """Found: callbacks belong to several sessions; those behind one that raised were never called, and their sessions waited
    for good."""
    called: list[int] = []

    def broken(number: int) -> None:
        raise ValueError("negative file descriptor")

    with caplog.at_level(logging.ERROR, "toymq_py"):
        call_all([called.append, broken, called.append], 7)
    assert called == [7, 7]
    (record,) = caplog.records
    assert "a bug in <function" in record.getMessage()
    assert record.exc_info is not None
