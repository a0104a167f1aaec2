"""One run: a broker, clients and injected faults (the "nemesis") produce a history, on which the checker gives a verdict.
Contract: reliability.md.

In ``out``: ``history.jsonl``, ``broker.log``, ``auth.toml`` if tokens are required, the data directory and the picture of
``timeline``.
"""

import asyncio
import hashlib
import json
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from toymq.broker_process import TOYMQ
from toymq_chaos import nemesis, queueing, users
from toymq_chaos.amqp_users import amqp_users
from toymq_chaos.history import Event, Recorder
from toymq_chaos.nemesis import Fault, Life
from toymq_chaos.small_disk import SmallDisk
from toymq_chaos.supervisor import BrokerFailed, Supervisor
from toymq_chaos.users import User
from toymq_chaos.verdict import Verdict
from toymq_chaos.views import Views
from toymq_chaos.worker_supervisor import WorkerSupervisor
from toymq_chaos.workload import Client, Habits, Message, Publisher, Subscriber
from toymq_py.errors import ConnectionLost
from toymq_py.protocol import Hello

TOPICS = ("alpha", "beta", "gamma")
PAYLOAD_BYTES = (0, 10, 100, 100, 1000, 1000, 8000)
VISIBILITY_MS = 1000
RETAIN_ACKED_FOR_MS = 12_000
"""Longer than a retry on an idle machine, clock jumps included. The checker allows that a later one is stored anew."""
KEEP_LOG_MS = 86_400_000
QUEUE_PUBLISHERS = 2
QUEUE_RATE = 60.0
"""Messages per second and publisher: enough to fill a limited backlog many times in a life."""
QUIET_S = 2.5
"""Time without a delivery after which all have come: longer than the visibility timeout and a redelivery."""
DRAIN_S = 120.0
"""Time to drain the broker; then it has failed."""
PUBLISHES_PER_S = 20
"""Answered publishes per planned second of a life: on a busy machine the life lasts longer instead of doing less work."""
MOVE_S = 30.0
"""Time after that in which every real client makes progress; otherwise it is stalled."""
STALLED_S = 120.0
"""Time after which a life ends with its work undone: checker and drain find the reason."""
ACK_WINDOW_NS = 1_000_000_000
"""How long an answered ack may wait for its flush: 100 ms by contract, and two syncs of a busy disk."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of ``toymq-chaos run``."""

    seed: int
    duration_s: float
    out: Path
    publishers: int = 4
    consumers: int = 2
    """The number of consumers per topic."""
    rate: float = 250.0
    """Most messages per second and publisher."""
    keep_log: bool = False
    """Whether nothing is removed from the log, so that it can be compared with the history."""
    workers: int = 1
    """Broker processes; above 1 their number changes between lives, from this one to one more and back."""


@dataclass(slots=True)
class Report:
    """The result of a run."""

    verdict: Verdict
    counts: Counter[str] = field(default_factory=Counter)
    """Faults by kind."""
    not_tried: list[str] = field(default_factory=list)
    """Faults that this machine does not allow, with reasons."""
    failure: str | None = None
    """Set when the broker exited, did not start, or left a directory that ``toymq verify`` refuses."""

    @property
    def ok(self) -> bool:
        return self.failure is None and self.verdict.ok


class Experiment:
    """Runs a real broker in real time; implements ``workload.World`` for its clients."""

    def __init__(self, options: Options, tell: Callable[[str], None], progress: Callable[[float], None]) -> None:
        """
        Args:
            tell: called with a line of text for each fault.
            progress: called with the seconds since the start, several times a second.
        """
        self._options = options
        self._with_tokens = bool(options.seed % 2)
        self._retain_acked_for_ms = KEEP_LOG_MS if options.keep_log else RETAIN_ACKED_FOR_MS
        self._tell = tell
        self._progress = progress
        self.calm = False
        self._began = time.monotonic()  # noqa: TID251 (real time is what this is about)
        self._epoch_ns = time.time_ns()  # noqa: TID251
        self.recorder = Recorder(self._now_ns, self._take)
        self._checker = Views(ack_window_ns=ACK_WINDOW_NS)
        self.report = Report(Verdict())
        self._history: TextIO
        self._broker: Supervisor
        self._entries = random.Random(f"entries {options.seed}")
        self._divisions = random.Random(f"divisions {options.seed}")
        self._disk: SmallDisk | None = None
        self._clients: set[Client] = set()
        self._subscribed: set[tuple[str, str]] = set()
        self._needed = {(topic, f"c{n}") for topic in TOPICS for n in range(options.consumers)}
        if not options.keep_log:
            self._needed |= queueing.NEEDED
        self._needed |= users.NEEDED
        self._farthest_ns = 0
        self._all_subscribed = asyncio.Event()
        self._last_activity_ns = 0
        self._answered = 0
        self._wanted = 0.0
        self._users: dict[User, asyncio.Task[None]] = {}
        self._tasks: asyncio.TaskGroup

    # -- workload.World

    async def ready(self) -> None:
        await self._all_subscribed.wait()

    def subscribed(self, topic: str, consumer: str) -> None:
        self._subscribed.add((topic, consumer))
        if self._subscribed >= self._needed:
            self._all_subscribed.set()

    async def connect(self, client: Client) -> None:
        self._clients = {other for other in self._clients if not other.lost}
        loop = asyncio.get_running_loop()
        while True:
            if self._broker.ready_line:
                with suppress(OSError):
                    port = self._entries.choice(self._broker.ports)
                    await loop.create_connection(lambda: client, "127.0.0.1", port)
                    self._clients.add(client)
                    self.recorder(client.name, "connect")
                    if self._with_tokens:
                        with suppress(ConnectionLost):  # which the client finds out by itself
                            await client.ask(Hello(1, token_of(self._options.seed)))
                    return
            await asyncio.sleep(0.02)

    def _now_ns(self) -> int:
        return self._epoch_ns + int(self._elapsed_s() * 1e9)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began  # noqa: TID251

    def _take(self, event: Event) -> None:
        if event.op in ("pub", "deliver"):
            self._last_activity_ns = event.t_ns
        self._answered += event.op == "pub" and event.result in ("ok", "dup")
        self._checker.feed(event)
        self._history.write(event.to_json() + "\n")

    def _messages(self, name: str) -> Iterator[Message]:
        rng = random.Random(f"{name} {self._options.seed}")
        n = 0
        while not self.calm:
            yield Message(rng.choice(TOPICS), f"{name}-{n}", rng.randbytes(rng.choice(PAYLOAD_BYTES)))
            n += 1

    # -- the run

    async def run(self) -> Report:
        """Run the experiment. Raises: OSError when ``out`` cannot be written."""
        options = self._options
        options.out.mkdir(parents=True, exist_ok=True)
        data = options.out / "data"
        if data.is_mount():
            raise FileExistsError(17, "the small disk of a killed run is still mounted: umount it", str(data))
        if data.exists():
            raise FileExistsError(17, "the data directory of an earlier run exists: choose another --out", str(data))
        async with AsyncExitStack() as stack:
            data.mkdir()
            reason: str | None = "it would make the broker remove acked messages"
            if not options.keep_log:
                self._disk, reason = SmallDisk.mount(data)
            if self._disk is not None:
                stack.callback(self._disk.unmount)
            if reason is not None:
                self.report.not_tried.append(f"full disk: {reason}")
            self._history = stack.enter_context((options.out / "history.jsonl").open("w"))
            auth: list[str] = []
            if self._with_tokens:
                file = options.out / "auth.toml"
                file.write_text(_auth_file(token_of(options.seed)))
                auth = ["--auth-file", str(file)]
            lives = nemesis.lives(options.seed, small_disk=self._disk is not None)
            data_dir = data / "d"
            # Where a topic does not say otherwise no message becomes a dead letter, which nothing reads: on a busy machine the
            # lease of one that a client forgot may end twenty times before the client comes to it.
            common = [
                "--visibility", f"{VISIBILITY_MS}ms", "--retain-acked-for", f"{self._retain_acked_for_ms}ms",
                "--shutdown-timeout", "1s", "--max-attempts", "0", *auth,
            ]  # fmt: skip
            files = options.out / "broker.log", options.out / "clock"
            if options.workers > 1:
                self._broker = WorkerSupervisor(data_dir, *files, common, options.workers + 1)
                lives = nemesis.of_workers(lives, options.seed, options.workers)
            else:
                self._broker = Supervisor(data_dir, *files, ["--amqp", "127.0.0.1:0", *common])
            try:
                await self._live_through(lives)
            except* BrokerFailed as failures:
                self.report.failure = str(failures.exceptions[0])
            finally:
                self._broker.signal(signal.SIGKILL)
                await self._broker.ended()
            if self.report.failure is None:
                parts = sorted(path for path in data_dir.glob("workers/[0-9]*") if path.is_dir())
                for directory in parts or [data_dir]:
                    self.report.failure = self.report.failure or await asyncio.to_thread(_complaint_of_verify, directory)
            self.report.verdict = self._checker.verdict()
            if not self.report.ok and self._disk is not None:
                shutil.copytree(data_dir, options.out / "data-kept", ignore=shutil.ignore_patterns("*.listen"))
        return self.report

    async def _live_through(self, lives: Iterator[Life]) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            ticker = tasks.create_task(self._tick())
            habits = Habits(
                forget=0.01, nack=0.01, sync=0.1, leave=0.001, stop_reading=0.001, stop_reading_s=3.0, cut_frame=0.002,
                rate=self._options.rate,
            )  # fmt: skip
            publishers = []
            for name in (f"p{n}" for n in range(self._options.publishers)):
                rng = random.Random(f"publisher {name} {self._options.seed}")
                publishers.append(tasks.create_task(Publisher(self, name, rng, self._messages(name), habits).run()))
            subscribers = []
            for topic in TOPICS:
                for consumer in (f"c{n}" for n in range(self._options.consumers)):
                    rng = random.Random(f"subscriber {consumer} {topic} {self._options.seed}")
                    subscriber = Subscriber(self, f"{consumer}-{topic}", rng, topic, consumer, habits)
                    subscribers.append(tasks.create_task(subscriber.run()))
            if not self._options.keep_log:  # purges, deletes and limits lose messages
                queueing.declare(self.recorder)
                rng = random.Random(f"queueing {self._options.seed}")
                senders, others = queueing.clients(self, rng, replace(habits, rate=QUEUE_RATE), QUEUE_PUBLISHERS, None)
                publishers += [tasks.create_task(sender.run()) for sender in senders]
                subscribers += [tasks.create_task(other.run()) for other in others]
            for user in self._make_users(habits):
                self._users[user] = tasks.create_task(user.run())
            left_s = self._options.duration_s
            while left_s > 0:
                life = next(lives)
                await self._live(life, min(life.lasts_s, left_s))
                left_s -= life.lasts_s
            await self._last_life(publishers)
            for task in (*subscribers, *self._users.values(), ticker):
                task.cancel()

    async def _live(self, life: Life, lasts_s: float) -> None:
        faults_told = ", ".join(f"{fault.kind} at {fault.at_s:.1f} s" for fault in life.faults)
        self._tell(f"a life of {life.lasts_s:.1f} s until {life.how}; point {life.point}; {faults_told or 'no faults'}")
        options = ["--min-free-bytes", str(life.reserve_bytes), "--segment-bytes", str(life.segment_bytes)]
        options += ["--commit", life.commit]
        if isinstance(self._broker, WorkerSupervisor):
            await self._start_workers(self._broker, life.workers, *options)
        elif not await self._broker.come_up(life.point, *options):
            self._ended("kill", f"{life.point} while it started")
            await self._broker.come_up(None, *options)
        self._started()
        async with asyncio.TaskGroup() as tasks:
            end = tasks.create_task(self._broker.ended())
            faults = tasks.create_task(self._do(life.faults))
            work = tasks.create_task(self._work(lasts_s))
            await asyncio.wait({end, work}, return_when=asyncio.FIRST_COMPLETED)
            if life.workers > 1:  # on a busy machine a worker takes a while to be replaced; each one is killed that is planned
                await asyncio.wait({end, faults}, return_when=asyncio.FIRST_COMPLETED)
            work.cancel()
            by_itself = end.done()
            faults.cancel()
            await asyncio.wait({faults})
            self._broker.signal(signal.SIGTERM if life.how == "stop" else signal.SIGKILL)
        code = end.result()
        if isinstance(self._broker, WorkerSupervisor) and self._broker.surprises:
            raise BrokerFailed(f"{self._broker.surprises[0]}: see {self._options.out / 'broker.log'}")
        if code == -signal.SIGKILL and (life.point is not None or not by_itself):
            self._ended("kill", str(life.point) if by_itself else None)
        elif code == 0 and life.how == "stop" and not by_itself:
            self._ended("stop", None)
        else:
            raise BrokerFailed(f"the broker ended with code {code}: {self._broker.last_line()}")

    async def _start_workers(self, broker: WorkerSupervisor, workers: int, *options: str) -> None:
        """Start a broker with this number of workers. If the number has changed, first run the command that changes it, which
        is killed again and again."""
        if broker.workers not in (0, workers):
            kills = await broker.divide(workers, self._divisions)
            self.report.counts["kill of toymq workers --set"] += kills
            self._tell(f"{self._elapsed_s():6.1f} s  {workers} workers, after {kills} kills of toymq workers --set")
        await broker.start_workers(workers, *options)

    async def _work(self, lasts_s: float) -> None:
        """Wait until the seconds of this life are over, as many publishes are answered as are due by then, and every real
        client (``users``) has made progress."""
        self._wanted += PUBLISHES_PER_S * lasts_s
        await asyncio.sleep(lasts_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(STALLED_S):
                while self._answered < self._wanted:  # noqa: ASYNC110 (counted for each publish, looked at ten times a second)
                    await asyncio.sleep(0.1)
        await self._move()

    async def _move(self) -> None:
        """Wait until every real client (``users``) has made progress; restart those that are stalled."""
        with suppress(TimeoutError):
            async with asyncio.timeout(MOVE_S):
                while not all(user.diary.moved for user in self._users):  # noqa: ASYNC110 (as above)
                    await asyncio.sleep(0.1)
        for user in [user for user in self._users if not user.diary.moved]:
            user.diary.stalled()
            user.diary.moved = True
            self._users[user].cancel()
            await asyncio.wait([self._users[user]])
            self._users[user] = self._tasks.create_task(user.run())

    def _make_users(self, habits: Habits) -> list[User]:
        token = token_of(self._options.seed) if self._with_tokens else ""
        url = f"toymq://{token}@127.0.0.1:{self._broker.port}" if token else f"toymq://127.0.0.1:{self._broker.port}"
        where = users.Surroundings(
            self.recorder, url, lambda: self._broker.amqp, token or "guest", habits, lambda: self.calm, self.ready,
            self.subscribed, self._options.workers > 1,
        )  # fmt: skip
        seed = self._options.seed
        if self._options.keep_log:  # each publish is looked up in it, by the id of its answer
            return users.users(where, seed, numbered=False)
        if where.workers:  # without AMQP
            return users.users(where, seed, numbered=True)
        return users.users(where, seed, numbered=True) + amqp_users(where, seed)

    async def _last_life(self, publishers: "list[asyncio.Task[None]]") -> None:
        """Run the last life of the broker, without faults, until everything is published and delivered, also messages that are
        late because the clock was ahead."""
        self._set_clock(self._farthest_ns)
        if isinstance(self._broker, WorkerSupervisor):
            await self._broker.start_workers(self._broker.workers, "--min-free-bytes", "0")
        else:
            await self._broker.come_up(None, "--min-free-bytes", "0")
        self._started()
        await self._work(0)
        self.calm = True
        self._tell("the faults are over; draining")
        try:
            async with asyncio.timeout(DRAIN_S):
                await asyncio.wait([*publishers, *(task for user, task in self._users.items() if user.publishes)])
                while (quiet_s := (self._now_ns() - self._last_activity_ns) / 1e9) < QUIET_S or self._owed():  # noqa: ASYNC110
                    await asyncio.sleep(max(QUIET_S - quiet_s, 0.1))
        except TimeoutError:
            owed = f"; {self._owed()} confirmed messages never came by AMQP" if self._owed() else ""
            raise BrokerFailed(f"consumers were not drained after {DRAIN_S:.0f} s{owed}") from None
        self.recorder("supervisor", "drained")

    def _owed(self) -> int:
        return sum(user.owes() for user in self._users)

    def _started(self) -> None:
        workers = self._broker.workers if isinstance(self._broker, WorkerSupervisor) else None
        self.recorder(
            "broker", "start", visibility_ms=VISIBILITY_MS, retain_acked_for_ms=self._retain_acked_for_ms, workers=workers
        )
        for user in self._users:
            user.diary.moved = False

    def _ended(self, how: str, note: str | None) -> None:
        self.recorder("broker", "stop" if how == "stop" else "kill", note=note)
        self._counted(f"{how} at {note.split('/')[0]}" if note else how, note)

    def _counted(self, what: str, note: str | None = None) -> None:
        self.report.counts[what] += 1
        self._tell(f"{self._elapsed_s():6.1f} s  {what}" + (f" ({note})" if note else ""))

    def _set_clock(self, ahead_ns: int) -> None:
        self._broker.set_clock(ahead_ns)
        self._farthest_ns = max(self._farthest_ns, ahead_ns)
        self.recorder("nemesis", "clock", note=f"{ahead_ns / 1e9:+.0f} s", ahead_ns=ahead_ns)

    async def _tick(self) -> None:
        while True:
            self._progress(self._elapsed_s())
            await asyncio.sleep(0.2)

    # -- the nemesis

    async def _do(self, faults: tuple[Fault, ...]) -> None:
        """Inject the faults of one life, at their times. Cancelled when the life ends, which also ends the present fault."""
        now_s = 0.0
        for fault in faults:
            await asyncio.sleep(max(0.0, fault.at_s - now_s))
            now_s = max(now_s, fault.at_s)
            self._counted("kill of a worker" if fault.kind == "worker" else fault.kind)
            match fault.kind:
                case "pause":
                    self.recorder("nemesis", "pause", worker=fault.worker)
                    self._signal(signal.SIGSTOP, fault.worker)
                    try:
                        await asyncio.sleep(fault.for_s)
                    finally:
                        self._signal(signal.SIGCONT, fault.worker)
                        self.recorder("nemesis", "resume", worker=fault.worker)
                    now_s += fault.for_s
                case "worker":
                    assert isinstance(self._broker, WorkerSupervisor)
                    assert fault.worker is not None
                    await self._broker.answers(fault.worker)
                    self.recorder("broker", "kill", note=f"worker {fault.worker}", worker=fault.worker)
                    self._broker.signal_worker(fault.worker, signal.SIGKILL)
                    await self._broker.replaced(fault.worker)
                case "full":
                    assert self._disk is not None
                    self.recorder("nemesis", "full")
                    self._disk.fill()
                    try:
                        await asyncio.sleep(fault.for_s)
                    finally:
                        self._disk.free()
                        self.recorder("nemesis", "free")
                    now_s += fault.for_s
                case "clock":
                    self._set_clock(fault.ahead_ns)
                case "cut":
                    self.recorder("nemesis", "cut")
                    for number, client in enumerate(sorted(self._clients, key=lambda client: client.name)):
                        if number % 2 == 0 and not client.lost:
                            client.transport.abort()
                    for user in self._users:
                        user.cut()

    def _signal(self, number: signal.Signals, worker: int | None) -> None:
        if isinstance(self._broker, WorkerSupervisor) and worker is not None:
            self._broker.signal_worker(worker, number)
        else:
            self._broker.signal(number)


def token_of(seed: int) -> str:
    """Return the token of a run's clients. The broker requires it when the seed is odd."""
    return hashlib.sha256(f"token {seed}".encode()).hexdigest()


def _auth_file(token: str) -> str:
    digest = hashlib.sha256(token.encode()).hexdigest()
    topics = json.dumps((*TOPICS, users.TOPIC, *queueing.TOPICS, queueing.EVENTS))
    rights = f"publish = {topics}\nsubscribe = {topics}\nadmin = true"
    return f'[[token]]\nname = "chaos"\nsha256 = "{digest}"\n{rights}\n'


def _complaint_of_verify(data_dir: Path) -> str | None:
    """Run ``toymq verify`` on the directory. Returns: what it complains about, or None."""
    done = subprocess.run([*TOYMQ, "verify", data_dir], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    said = (done.stdout + done.stderr).strip().splitlines() or [f"exit code {done.returncode}"]
    return f"toymq verify: {said[-1]}"
