"""What the broker asks of the allocators."""

import ctypes
import os
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys, threading
from toymq_py import memory
if sys.argv[1] == "shared":
    memory.set_up()
all_here = threading.Barrier(8)
def work():
    held = bytes(50_000)
    all_here.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""


def arenas(how: str) -> int:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.count("<heap nr=")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="glibc's malloc alone has arenas")
def test_threads_share_one_arena() -> None:
    """Found by the soak: an arena for each sync thread, and in each what had been freed."""
    assert arenas("own") > 1, "this machine makes arenas for threads"
    assert arenas("shared") == 1
