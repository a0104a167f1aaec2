"""The event loop and the sync threads of a broker, simulated: one thread, a fake clock, an order drawn from a seed."""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from functools import partial

from tests.support.fake_clock import FakeClock
from toymq_py.storage.commit.sync_threads import RunJob

Call = Callable[[], None]


def _run(job: Call) -> None:
    job()


class SimLoop:
    """A simulated loop. Implements ``toymq_py.storage.commit.sync_threads.Scheduler``. Nothing runs before ``step``, ``drain``
    or ``advance``."""

    def __init__(self, clock: FakeClock, rng: random.Random, run_job: RunJob | None = None) -> None:
        """``run_job`` runs each job; by default it raises what the job raises."""
        self.clock = clock
        self._rng = rng
        self._run_job: RunJob = run_job or _run
        self._soon: deque[Call] = deque()
        self._jobs: list[tuple[Call, Call]] = []
        self._timers: list[tuple[float, int, Call]] = []
        self._tickets = itertools.count()

    def soon(self, call: Call) -> None:
        self._soon.append(call)

    def later(self, delay_s: float, call: Call) -> None:
        heapq.heappush(self._timers, (self.clock.monotonic() + delay_s, next(self._tickets), call))

    def offload(self, job: Call, done: Call) -> None:
        self._jobs.append((job, done))

    def run_here(self, job: Call, done: Call) -> None:
        ticket = self._run_job(job)
        if ticket is None:
            done()
        else:
            ticket.when_settled(done)

    def step(self) -> bool:
        """Run one thing that is due; of the jobs on the sync threads a random one. Returns: whether there was one."""
        if self._soon:
            self._soon.popleft()()
        elif self._jobs:
            job, done = self._jobs.pop(self._rng.randrange(len(self._jobs)))
            ticket = self._run_job(job)
            self._soon.append(done if ticket is None else partial(ticket.when_settled, done))
        else:
            return False
        return True

    def drain(self) -> None:
        """Run everything that is due, without moving the clock."""
        while self.step():
            pass

    def advance(self, seconds: float) -> None:
        """Move the clock, and run what becomes due on the way."""
        end = self.clock.monotonic() + seconds
        self.drain()
        while self._timers and self._timers[0][0] <= end:
            at, _, call = heapq.heappop(self._timers)
            self.clock.advance(max(at - self.clock.monotonic(), 0.0))
            call()
            self.drain()
        self.clock.advance(max(end - self.clock.monotonic(), 0.0))
