"""What the broker sets in the memory allocators, and when it returns freed memory."""

import asyncio
import ctypes
import itertools
import os
import random
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.sim_event_loop import SimEventLoop
from toymq_py.runtime import heap_trimming
from toymq_py.runtime.memory_watch import MEMORY_PERIOD_S

PROGRAM = """
import ctypes, sys, threading
from toymq_py.runtime import heap_trimming
if sys.argv[1] == "shared":
    heap_trimming.set_up()
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
    """Found by the soak: each sync thread had an arena of its own, with freed memory in it."""
    assert arenas("own") > 1, "this machine makes arenas for threads"
    assert arenas("shared") == 1


MUCH, LITTLE = 200 * 2**20, 100 * 2**20


class Kept:
    """A memory keeper of a broker that uses ``busy`` of a core, and whose memory is as ``sizes`` say; ``rounds`` has the times
    of its rounds. ``later_s`` after those of a crowd there is one more round, by default after the end of a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, busy: float, sizes: Iterator[int], later_s: float = 1e6) -> None:
        self.busy = busy
        self.rounds: list[float] = []
        self.collected: list[float] = []
        self.loop = SimEventLoop(random.Random(1))
        monkeypatch.setattr(heap_trimming, "rss_bytes", lambda: LITTLE)
        self.keeper = heap_trimming.HeapTrimmer(self.loop)
        monkeypatch.setattr(heap_trimming, "rss_bytes", lambda: next(sizes))
        monkeypatch.setattr(heap_trimming, "LATER_S", later_s)
        monkeypatch.setattr(heap_trimming, "_forget_names", lambda: self.rounds.append(self.loop.time()))
        self._cpu_s, self._then = 0.0, self.loop.time()
        monkeypatch.setattr(heap_trimming.time, "process_time", self._process_time)
        # A round of the test process costs 0.2 s: it has everything imported, and hundreds of rounds are counted here.
        monkeypatch.setattr(heap_trimming.gc, "collect", lambda: self.collected.append(self.loop.time()))
        monkeypatch.setattr(heap_trimming, "_GLIBC", None)

    def _process_time(self) -> float:
        now = self.loop.time()
        self._cpu_s += (now - self._then) * self.busy
        self._then = now
        return self._cpu_s

    def advance(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))
        self._process_time()


def test_a_busy_broker_looks_at_its_memory_when_it_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found with a broker under load: each health check that ended began rounds of collecting, 6 % of its time."""
    kept = Kept(monkeypatch, 0.9, itertools.repeat(MUCH))
    kept.keeper.look(1, 0)
    kept.advance(60)
    assert not kept.rounds
    kept.busy = 0.1
    kept.advance(10)
    assert len(kept.rounds) == heap_trimming.PATIENCE
    kept.loop.close()


def test_what_a_crowd_leaves_is_not_left_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(monkeypatch, 0.9, (MUCH * 2**more for more in itertools.count()))
    kept.keeper.look(heap_trimming.CROWD, 0)
    kept.advance(10)
    assert len(kept.rounds) == heap_trimming.PATIENCE
    kept.keeper.look(1, 0)
    kept.advance(60)
    assert len(kept.rounds) == heap_trimming.PATIENCE, "the crowd was seen to"
    kept.loop.close()


def test_what_is_held_for_some_seconds_after_a_crowd_left_is_given_back_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found with ten thousand connections: a check for dead peers held their memory, three rounds freed nothing, and 45 MB
    stayed until the next crowd left."""
    sizes = itertools.chain(itertools.repeat(MUCH, 2 * heap_trimming.PATIENCE + 1), itertools.repeat(LITTLE))
    kept = Kept(monkeypatch, 0.9, sizes, later_s := heap_trimming.LATER_S)
    kept.keeper.look(heap_trimming.CROWD, 0)
    kept.advance(later_s)
    assert len(kept.rounds) == heap_trimming.PATIENCE
    kept.advance(later_s)
    assert heap_trimming.PATIENCE + 1 < len(kept.rounds) <= 2 * heap_trimming.PATIENCE + 1, "one that helped is not the last"
    before = len(kept.rounds)
    kept.advance(10 * later_s)
    assert len(kept.rounds) == before
    kept.loop.close()


def test_rounds_that_seem_to_help_for_ever_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found with a broker under load, whose memory use went up and down: rounds followed each other as long as the load
    lasted."""
    kept = Kept(monkeypatch, 0.0, itertools.chain((MUCH,), itertools.cycle((MUCH, LITTLE))))
    kept.keeper.look(1, 0)
    kept.advance(100 * heap_trimming.ROUND_S)
    assert heap_trimming.PATIENCE < len(kept.rounds) <= heap_trimming.ROUNDS_MAX + heap_trimming.PATIENCE
    kept.loop.close()


def test_a_crowd_that_leaves_by_and_by_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found in review: connections that closed by the hundred did not count as a crowd, nor did those that closed while memory
    of the first ones was returned."""
    kept = Kept(monkeypatch, 0.9, itertools.repeat(LITTLE))  # what is usual counts those that stay
    there = 4 * heap_trimming.CROWD
    for _ in range(8):
        kept.keeper.look(there, there - heap_trimming.CROWD // 2)
        there -= heap_trimming.CROWD // 2
        kept.advance(5)
    assert len(kept.rounds) == 4 * heap_trimming.PATIENCE
    kept.keeper.look(10 * heap_trimming.CROWD, 8 * heap_trimming.CROWD)
    kept.advance(heap_trimming.WATCH_S + 0.01)
    kept.keeper.look(8 * heap_trimming.CROWD, 0)  # in the middle of a round, which is given up
    kept.advance(10)
    assert len(kept.rounds) == 5 * heap_trimming.PATIENCE
    kept.loop.close()


def leave(kept: Kept, there: int, fewer: int, seconds: float) -> int:
    """Let connections close for so long, ``fewer`` between two looks. Returns: the number of those that stay."""
    for _ in range(round(seconds / MEMORY_PERIOD_S)):
        kept.keeper.look(there, there - fewer)
        there -= fewer
        kept.advance(MEMORY_PERIOD_S)
    return there


def test_nothing_is_collected_while_a_crowd_is_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found with ten thousand connections: half a second after the first had closed, a collection that looked at all the others
    blocked the loop for 50 to 280 ms, and again in each round; and objects renewed among them kept 25 MiB."""
    kept = Kept(monkeypatch, 0.9, itertools.repeat(LITTLE))
    assert leave(kept, 10_000, 1000, seconds=2.5) == 0
    assert not kept.collected
    kept.advance(2)
    assert len(kept.rounds) == heap_trimming.PATIENCE == len(kept.collected)
    kept.keeper.look(5000, 4000)
    kept.advance(heap_trimming.WATCH_S + 0.01)
    before = len(kept.collected)
    assert leave(kept, 4000, 1000, seconds=1) == 0, "in the middle of a round"
    assert len(kept.collected) == before
    kept.advance(2)
    assert len(kept.rounds) == 2 * heap_trimming.PATIENCE
    kept.loop.close()


def test_connections_that_leave_one_after_the_other_are_not_waited_for_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(monkeypatch, 0.9, itertools.repeat(MUCH))
    leave(kept, 10_000, 100, seconds=heap_trimming.WAITS_MAX * heap_trimming.WATCH_S + 2)
    assert kept.rounds
    kept.loop.close()
