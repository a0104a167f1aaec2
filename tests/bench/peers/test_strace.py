"""Counting syncs with strace."""

from toymq_bench.peers import strace


def test_the_summary_of_strace_is_read() -> None:
    summary = """% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 98.10    0.512345         512      1000           fdatasync
  1.90    0.009876         123        80         2 fsync
------ ----------- ----------- --------- --------- ----------------
100.00    0.522221         483      1080         2 total
"""
    assert strace.count(summary) == 1080
    assert strace.count("") == 0
