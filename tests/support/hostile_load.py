"""A hostile load on a broker, and measurements of its effect on another client and on the broker's resources.

The load runs in a process of its own (``tests.support.hostile_clients``). Meanwhile one connection here sends a PING every few
milliseconds. The time of a PING that was due while an older one still waited counts from when it was due: otherwise a broker
that stops for a second would cost only one bad sample. The time for which broker and client waited for a CPU core is
subtracted: on a busy machine that is most of the time, and not the broker's fault. The kernel reports such a wait when it ends,
so one that began before the PING is subtracted as a whole: on a busy machine only long stops are seen, on an idle one all.
"""

import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.broker_process import ROOT, BrokerProcess, Wire, environment
from toymq_py.runtime.heap_trimming import LATER_S

PING_EVERY_S = 0.005
LOAD_TIMEOUT_S = 300
QUIET_WITHIN_S = 4.0 + LATER_S
"""How long memory has to go back: the broker looks half a second after a connection has ended, works in rounds, and once more
after ``LATER_S``."""
MIB = 1024 * 1024
RSS_FACTOR = 1.2
RSS_SLACK_BYTES = 8 * MIB
"""Beside the 20 %: a broker that did nothing yet has 31 MiB, and the interpreter's allocator returns whole MiBs only, each of
which one small thing of a living connection keeps."""


def waited_for_a_core_s(pid: int) -> float:
    """Seconds for which the main thread of a process was ready to run while others had the cores; 0 where the system does not
    tell."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def worked_s(pid: int) -> float:
    """Seconds for which the main thread of a process ran on a core: the work of its event loop, however busy the machine is."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


@dataclass(slots=True)
class Seen:
    """What was measured during a load."""

    pings_ms: list[float] = field(default_factory=list)
    """What each PING waited, but not for a core."""
    waited_for_a_core_s: float = 0.0
    rss_before: int = 0
    rss_most: int = 0
    rss_after: int = 0
    descriptors_before: int = 0
    descriptors_most: int = 0
    descriptors_after: int = 0
    report: dict[str, int] = field(default_factory=dict)
    """What the clients said at their end."""

    @property
    def rss_limit(self) -> float:
        """The resident memory to which the broker has to return."""
        return self.rss_before * RSS_FACTOR + RSS_SLACK_BYTES

    def percentile_ms(self, part: float) -> float:
        return sorted(self.pings_ms)[int(part * (len(self.pings_ms) - 1))]

    def __str__(self) -> str:
        return (
            f"{len(self.pings_ms)} PINGs: p50 {self.percentile_ms(0.5):.1f} ms, p99 {self.percentile_ms(0.99):.1f} ms, "
            f"most {max(self.pings_ms):.1f} ms, beside {self.waited_for_a_core_s:.1f} s for a core; "
            f"RSS {self.rss_before / MIB:.1f} -> {self.rss_most / MIB:.1f} -> "
            f"{self.rss_after / MIB:.1f} MiB; descriptors {self.descriptors_before} -> {self.descriptors_most} -> "
            f"{self.descriptors_after}; {self.report}"
        )


class Load:
    """A running load: one behaviour of ``hostile_clients``. A context manager, which kills the process at its end."""

    def __init__(self, broker: BrokerProcess, behaviour: str, count: int) -> None:
        self._command = [sys.executable, "-m", "tests.support.hostile_clients", behaviour, str(broker.port), str(count)]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Load":
        self._process = subprocess.Popen(
            self._command, env=environment(), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        with self._process as process:  # closes the pipes and waits
            process.kill()

    def speaks_within(self, seconds: float) -> bool:
        """Whether the load's process prints a line, or ends, within ``seconds``."""
        assert self._process is not None
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], max(seconds, 0))[0])

    def line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the hostile clients died"
        return line

    def end(self) -> None:
        """Tell the load's process to end the load."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()


class Watch:
    """Another client, which watches a broker under load."""

    def __init__(self, broker: BrokerProcess, wire: Wire) -> None:
        self._broker = broker
        self._wire = wire
        self.seen = Seen()

    def under(
        self, behaviour: str, count: int, *, for_s: float | None = None, admitted: bool = True, settle_s: float = 0
    ) -> Seen:
        """Measure from the beginning of a load until it is gone.

        Args:
            for_s: how many seconds the load is on, once the broker has all the connections; None: until it ends by itself.
            admitted: whether the broker accepts all the connections.
            settle_s: how many seconds to go on measuring when memory has returned to the limit.
        """
        seen, broker = self.seen, self._broker
        self._ask_twice()
        seen.rss_before, seen.descriptors_before = broker.rss_bytes(), broker.descriptors()
        connections = self.stats()["connections"]
        with Load(broker, behaviour, count) as load:
            self._ping_until_it_speaks(load, LOAD_TIMEOUT_S)
            assert load.line() == "on\n"
            if for_s is None:
                self._ping_until_it_speaks(load, LOAD_TIMEOUT_S)
            else:
                if admitted:
                    self._ping_until_all_are_in(load, connections + count)
                self._ping_until_it_speaks(load, for_s)
            self._look()
            load.end()
            self._ping_until_it_speaks(load, LOAD_TIMEOUT_S)
            seen.report = json.loads(load.line())
        self._wait_until_quiet(settle_s)
        seen.rss_after, seen.descriptors_after = broker.rss_bytes(), broker.descriptors()
        print(f"\n{behaviour} x {count}: {seen}")  # noqa: T201 (the figures are what `make torture` is run for)
        return seen

    def stats(self) -> dict[str, Any]:
        answer = self._wire.ask(b"STATS\n").split(b" ")
        assert answer[0] == b"JSON", answer
        body = self._wire.read(int(answer[1]) + 1)
        found: dict[str, Any] = json.loads(body)
        return found

    def _ask_twice(self) -> None:
        for _ in range(2):  # what the first answer makes, later ones reuse
            assert self._wire.ask(b"PING\n") == b"PONG"
            self.stats()

    def _ping_until_it_speaks(self, load: Load, seconds: float) -> None:
        began = due = time.perf_counter()
        looked = 0.0
        while due < began + seconds:
            own = waited_for_a_core_s(os.getpid())
            if load.speaks_within(due - time.perf_counter()):
                return
            brokers = waited_for_a_core_s(self._broker.pid)
            assert self._wire.ask(b"PING\n") == b"PONG"
            now = time.perf_counter()
            waited = waited_for_a_core_s(os.getpid()) - own + waited_for_a_core_s(self._broker.pid) - brokers
            self.seen.waited_for_a_core_s += waited
            while due <= now:
                self.seen.pings_ms.append(max(now - due - waited, 0.0) * 1000)
                due += PING_EVERY_S
            if now > looked + 0.05:
                self._look()
                looked = now
                due = max(due, time.perf_counter())  # the broker did not hold up this list of ten thousand descriptors

    def _ping_until_all_are_in(self, load: Load, connections: int) -> None:
        """Send PINGs until the broker has all connections. Descriptors do not tell: one of a segment may be closed
        meanwhile."""
        until = time.perf_counter() + LOAD_TIMEOUT_S
        while self.stats()["connections"] < connections:
            assert time.perf_counter() < until, "not all connections were accepted"
            self._ping_until_it_speaks(load, PING_EVERY_S)

    def _look(self) -> None:
        seen = self.seen
        seen.rss_most = max(seen.rss_most, self._broker.rss_bytes())
        seen.descriptors_most = max(seen.descriptors_most, self._broker.descriptors())

    def _wait_until_quiet(self, settle_s: float) -> None:
        """Wait until the broker has only this client's connection, and its memory has returned, or does not."""
        seen, broker = self.seen, self._broker
        while self.stats()["connections"] != 1:
            pass  # an answer each time: the poll is paced by the broker
        until = time.perf_counter() + QUIET_WITHIN_S
        settled = until
        while time.perf_counter() < until:
            if broker.descriptors() <= seen.descriptors_before + 1 and broker.rss_bytes() <= seen.rss_limit:
                settled = min(settled, time.perf_counter() + settle_s)
            if time.perf_counter() >= settled:
                break
            select.select([], [], [], PING_EVERY_S)
