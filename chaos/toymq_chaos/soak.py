"""Hours of load and churn, to find leaks. Contract: reliability.md, "soak".

    warm-up round       round 1            round 2
    work ── calm ─ rest ─ work ── calm ─ rest ─ work ── calm ─ rest
                    └─── the first rest ─ is held against ─ the last ┘

In ``out``: ``soak.jsonl`` (a sample a line), ``broker.log``, the data directory and, from ``curves``, a picture.
"""

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from toymq_chaos import leaks, vitals
from toymq_chaos.churn import STANDING_CONSUMER, STANDING_TOPICS, Shift, do
from toymq_chaos.supervisor import BrokerFailed, Supervisor
from toymq_chaos.vitals import Vitals
from toymq_chaos.workload import Client
from toymq_py.errors import ToymqError
from toymq_py.protocol import Delete, Forget, JsonReply, Ping, PongReply, Stats

SEGMENT_BYTES = 2 << 20
"""The size of segments, the least with which the broker preallocates them: those must be removed, too."""
OPTIONS = (
    "--segment-bytes", str(SEGMENT_BYTES), "--visibility", "1s", "--retain-acked-for", "1s", "--min-free-bytes", "0",
    # Few, so that the warm-up fills the dedupe table.
    "--dedupe-keys", "1000", "--dedupe-keys-total", "10000",
)  # fmt: skip
WORK_S = (1.5, 60.0)
"""Bounds of the work of a round, a tenth of the duration."""
SAMPLE_S = 5.0
PING_S = 0.02
CALM_S = 120.0
"""Time to drain the broker, and for retention and the disk; then it has failed."""
LOOK_S = 0.1
STABLE_S = 1.0
"""Time without a change after which the broker is at rest: it removes files after its answers."""
STOP_S = 30.0
NOTICE_S = 1.0
"""Time for a broker that cut its connections to exit."""
OWN_CONNECTIONS = 2
"""The control connection and the one that pings."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of ``toymq-chaos soak``."""

    seed: int
    duration_s: float
    """The time after which no round starts; there are at least two."""
    out: Path


@dataclass(slots=True)
class Report:
    """The result of a soak."""

    samples: list[Vitals] = field(default_factory=list)
    failure: str | None = None
    """Set when the broker exited, refused a command, or was never drained."""

    def complaint(self) -> str | None:
        """All failures in one line; None when everything returned to where it was."""
        if self.failure is not None:
            return self.failure
        found = leaks.complaints(self.samples)
        return f"did not return: {'; '.join(found)}" if found else None


class Soak:
    """Runs one broker from start to stop, round after round."""

    def __init__(self, options: Options, progress: Callable[[float, str], None]) -> None:
        """``progress``: called with the seconds since the start and a status, several times a second."""
        self._options = options
        self._progress = progress
        self._began = time.monotonic()  # noqa: TID251 (real time is what this is about)
        self._data_dir = options.out / "data"
        self._round = 0
        self._doing = "warming up"
        self._pings_s: list[float] = []
        self.report = Report()
        self._lines: TextIO
        self._broker: Supervisor
        self._control = Client("control")
        self._one_at_a_time = asyncio.Lock()  # for its commands

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began  # noqa: TID251

    async def run(self) -> Report:
        """Run the soak. Raises: OSError when ``out`` cannot be written; LocalError without ``/proc``, or when ``toymq`` does
        not start."""
        vitals.require_proc()
        out = self._options.out
        out.mkdir(parents=True, exist_ok=True)
        if self._data_dir.exists():
            raise FileExistsError(17, "the data directory of an earlier run exists: choose another --out", str(self._data_dir))
        self._broker = Supervisor(self._data_dir, out / "broker.log", out / "clock", OPTIONS)
        with (out / "soak.jsonl").open("w", buffering=1) as self._lines:  # a line at a time, for tail -f over hours
            await self._broker.come_up(None)
            try:
                await self._live()
            except* (ToymqError, OSError) as failures:
                self.report.failure = await self._why(failures)
            finally:
                await self._stop()
        return self.report

    async def _live(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(work) for work in (self._watch(), self._ping(), self._tick())]
            await self._connect(self._control)
            while self._round < 2 or self._elapsed_s() < self._options.duration_s:
                await self._one_round()
                self._round += 1
            for task in background:
                task.cancel()

    async def _stop(self) -> None:
        """Stop the broker by SIGTERM, then SIGKILL if that does not end it."""
        self._broker.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await self._broker.ended()
        except TimeoutError:
            self._broker.signal(signal.SIGKILL)
            await self._broker.ended()
            self.report.failure = self.report.failure or f"the broker had not stopped {STOP_S:.0f} s after SIGTERM"

    # -- a round

    async def _one_round(self) -> None:
        work_s = min(max(self._options.duration_s / 10, WORK_S[0]), WORK_S[1])
        self._doing = f"round {self._round}" if self._round else "warming up"
        shift = Shift(self._broker.port, self._round, self._options.seed, time.monotonic_ns)
        async with asyncio.TaskGroup() as tasks:
            over = asyncio.Event()
            tasks.create_task(self._sample_until(over, min(SAMPLE_S, work_s / 3)))
            await shift.run(work_s, self._drained)
            over.set()
        await self._at_rest()
        await self._sample(at_rest=True)

    async def _sample_until(self, over: asyncio.Event, every_s: float) -> None:
        """Sample the broker every ``every_s`` seconds until ``over`` is set. The last sample comes then, so that PINGs from the
        time of work are not counted in the sample at rest.

        Do not cancel this: the reply to a cancelled command would be taken for the reply to the next one.
        """
        while not over.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await over.wait()
            await self._sample(at_rest=False)

    async def _sample(self, *, at_rest: bool) -> None:
        stats = await self._stats()
        pings_s, self._pings_s = self._pings_s, []
        sample = self._look(stats, pings_s, at_rest=at_rest)
        self.report.samples.append(sample)
        self._lines.write(sample.to_json() + "\n")

    def _look(self, stats: dict[str, Any], pings_s: Sequence[float], *, at_rest: bool) -> Vitals:
        """Take one sample of the broker's process. Raises: BrokerFailed when it is gone."""
        try:
            return vitals.take(
                self._broker.pid, self._data_dir, stats, pings_s,
                t_s=self._elapsed_s(), round_number=self._round, at_rest=at_rest,
            )  # fmt: skip
        except (FileNotFoundError, ProcessLookupError):
            raise BrokerFailed(f"the broker is gone: {self._broker.last_line()}") from None

    async def _drained(self) -> None:
        """Wait until only the lasting topics and consumers are left, and their backlogs are empty. Raises: BrokerFailed."""
        left = "nothing"
        try:
            async with asyncio.timeout(CALM_S):
                while (found := await self._sweep(await self._stats())) is not None:
                    left = found
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise BrokerFailed(f"after {CALM_S:.0f} s of calm there was still {left}") from None

    async def _sweep(self, stats: dict[str, Any]) -> str | None:
        """Delete the topics and consumers that a round left behind. Returns: what still has to end, or None."""
        left = None
        for topic in stats["topics"]:
            name = topic["topic"]
            if name not in STANDING_TOPICS:
                await self._do(Delete(name))
                left = f"a topic {name}"
                continue
            for consumer in topic["consumers"]:
                if consumer["consumer"] != STANDING_CONSUMER:
                    await self._do(Forget(name, consumer["consumer"]))
                    left = f"a consumer {consumer['consumer']} of {name}"
                elif unacked := consumer["backlog"] + consumer["scheduled"]:
                    left = f"a backlog of {unacked} in {name}"
        return left

    async def _at_rest(self) -> None:
        """Wait until retention, connections and files are done and nothing changes. After ``CALM_S`` seconds give up: the
        sample then shows what is not done."""
        before: tuple[object, ...] = ()
        began_s = since_s = self._elapsed_s()
        while self._elapsed_s() - since_s < STABLE_S and self._elapsed_s() - began_s < CALM_S:
            await asyncio.sleep(LOOK_S)
            stats = await self._stats()
            now = self._look(stats, (), at_rest=True)
            over = stats["connections"] == OWN_CONNECTIONS and not any(topic["messages"] for topic in stats["topics"])
            seen = (over, now.disk_bytes, now.descriptors, now.tasks)
            if not over or seen != before:
                before, since_s = seen, self._elapsed_s()

    # -- the background

    async def _watch(self) -> None:
        """Wait for the broker's end. Raises: BrokerFailed then."""
        raise BrokerFailed(await self._end())

    async def _end(self) -> str:
        code = await self._broker.ended()
        return f"the broker ended with code {code}: {self._broker.last_line()}"

    async def _why(self, failures: BaseExceptionGroup[Exception]) -> str:
        """Choose the failure to report: the broker's exit rather than the errors of its clients."""
        with suppress(TimeoutError):
            async with asyncio.timeout(NOTICE_S):
                return await self._end()
        leaves = list(_leaves(failures))
        return str(next((leaf for leaf in leaves if isinstance(leaf, BrokerFailed)), leaves[0]))

    async def _ping(self) -> None:
        """Measure PING round trips on a separate connection; they include delays in this busy process."""
        client = Client("pinger")
        await self._connect(client)
        while True:
            sent = time.perf_counter()
            if not isinstance(reply := await client.ask(Ping()), PongReply):
                raise BrokerFailed(f"PING got {reply}")
            self._pings_s.append(time.perf_counter() - sent)
            await asyncio.sleep(PING_S)

    async def _tick(self) -> None:
        while True:
            samples = self.report.samples
            held = f", {samples[-1].rss_bytes >> 20} MiB, {samples[-1].descriptors} descriptors" if samples else ""
            self._progress(self._elapsed_s(), self._doing + held)
            await asyncio.sleep(0.2)

    async def _connect(self, client: Client) -> None:
        await asyncio.get_running_loop().create_connection(lambda: client, "127.0.0.1", self._broker.port)

    async def _do(self, command: Delete | Forget) -> None:
        async with self._one_at_a_time:
            await do(self._control, command)

    async def _stats(self) -> dict[str, Any]:
        async with self._one_at_a_time:
            reply = await self._control.ask(Stats())
        if not isinstance(reply, JsonReply):
            raise BrokerFailed(f"STATS got {reply}")
        return dict(json.loads(reply.body))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error
