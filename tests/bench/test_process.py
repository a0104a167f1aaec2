"""CPU time and memory of processes."""

import os

import pytest

from toymq_bench import process
from toymq_bench.errors import BenchError

GONE = 999_999_999


def test_this_process_costs_something_and_one_that_is_gone_nothing() -> None:
    assert process.cpu_s([os.getpid(), GONE]) > 0
    assert process.rss_bytes([os.getpid(), GONE]) > 1 << 20
    assert process.cpu_s([GONE]) == process.rss_bytes([GONE]) == 0


def test_a_family_begins_with_the_process_itself() -> None:
    assert process.family(os.getpid())[0] == os.getpid()
    assert process.family(GONE) == [GONE]


def test_a_process_that_does_not_exist_is_named() -> None:
    process.require_proc(os.getpid())
    with pytest.raises(BenchError, match="process 999999999 does not exist"):
        process.require_proc(GONE)
