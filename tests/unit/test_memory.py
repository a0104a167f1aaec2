"""What the broker asks of the allocators."""

import asyncio
import ctypes
import itertools
import os
import random
import subprocess
import sys

import pytest

from tests.support.sim_event_loop import SimEventLoop
from toymq_py import memory

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


def test_rounds_that_seem_to_help_for_ever_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a broker under load, whose memory came and went: rounds followed each other as long as the load did."""
    loop = SimEventLoop(random.Random(1))
    sizes = itertools.cycle((200 * 2**20, 100 * 2**20))
    monkeypatch.setattr(memory, "rss_bytes", lambda: 100 * 2**20)
    keeper = memory.Keeper(loop)
    rounds: list[float] = []
    monkeypatch.setattr(memory, "rss_bytes", lambda: next(sizes))
    monkeypatch.setattr(memory, "_forget_names", lambda: rounds.append(loop.time()))
    keeper.look()
    next(sizes)  # each round finds much and leaves little
    loop.run_until_complete(asyncio.sleep(100 * memory.ROUND_S))
    assert memory.PATIENCE < len(rounds) <= memory.ROUNDS_MAX + memory.PATIENCE
    loop.close()
