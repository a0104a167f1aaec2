"""A cluster of real processes: a real etcd, ``toymq serve --cluster`` on each node, and a client that publishes all the
time."""

import asyncio
import contextlib
import os
import signal
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

import toymq
from tests.support.broker_process import COMMAND, BrokerProcess
from tests.support.etcd import LOCAL, EtcdCluster, etcd_on_machines, running_etcd
from tests.support.machines import Machine, Machines
from toymq.sockets import reserved_port
from toymq_py.clock import SystemClock
from toymq_py.errors import EtcdError
from toymq_py.replication.agreement import ClusterSettings, GroupState, Seat
from toymq_py.replication.etcd_client import EtcdAgreement, EtcdOptions
from toymq_py.replication.paths import is_file

CLUSTER, GROUP = "orders", "g0"
MONOTONIC = SystemClock.monotonic
UUID = "6f1dd0f0-3b1c-4a53-9c3a-0d7f3e6a1c11"
QUIET_S = 1.0
"""Longer than the flush of offsets is put off, and than a follower waits for what is not synced."""
WAIT_S = 60.0
"""A busy machine takes its time; a cluster that works takes a few seconds."""


class ClusterNode(BrokerProcess):
    """One node: this object's process is the node's supervisor, and the node itself is its child."""

    def __init__(
        self, directory: Path, name: str, etcd: EtcdCluster, *options: str, machine: Machine | None = None,
        executed: bool = False, amqp: bool = False,
    ) -> None:  # fmt: skip
        """``machine``: where the node runs; None for this machine, on free ports. ``executed``: start it by exec, never forked.
        ``amqp``: whether it serves AMQP, on ``amqp_port``."""
        self.name = name
        self.machine = machine
        self.host = machine.data if machine is not None else LOCAL
        self.replicate_port = reserved_port(self)
        self.http_port = reserved_port(self)
        beyond = ("--insecure-public", "--replicate-plaintext") if machine is not None else ()
        self.amqp_port = reserved_port(self) if amqp else 0
        if amqp:
            options = (*options, "--amqp", f"{self.host}:{self.amqp_port}")
        super().__init__(
            directory / name, "--cluster", CLUSTER, "--etcd", ",".join(etcd.urls), "--name", name,
            "--replicate", f"{self.host}:{self.replicate_port}", "--http", f"{self.host}:{self.http_port}", *beyond, *options,
            executed=executed or machine is not None,
        )  # fmt: skip
        if machine is not None:
            self.program = [*machine.within, *COMMAND]
            self.options += ["--listen", f"{self.host}:{self.port}"]
        self.log_path = directory / f"{name}.log"
        self._log_file = self.log_path

    @property
    def url(self) -> str:
        return f"toymq://{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the node was started and its exit has not been collected."""
        return self._process is not None

    @property
    def node_pid(self) -> int:
        """The id of the process that has the data directory open. Raises: ProcessLookupError."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        if not children:
            raise ProcessLookupError(f"{self.name} has no process")
        return int(children[0])

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until ``holds`` is true of this node. Raises: AssertionError, with the node's log."""
        ends_at = MONOTONIC() + WAIT_S
        while not holds():
            assert MONOTONIC() < ends_at, f"not within {WAIT_S:g} s: {what}\n{self.log_path.read_text()}"
            time.sleep(0.01)

    def signal_node(self, number: signal.Signals) -> None:
        os.kill(self.node_pid, number)

    def kill_machine(self) -> None:
        """Kill the node as a power loss of its machine would, except that the page cache survives: the supervisor first, so
        that nothing is restarted."""
        if self._process is None:
            return
        try:
            child: int | None = self.node_pid
        except (ProcessLookupError, FileNotFoundError):
            child = None
        self.signal(signal.SIGKILL)
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self.wait()
        until = MONOTONIC() + WAIT_S
        while child is not None and _runs(child) and MONOTONIC() < until:
            time.sleep(0.01)

    def kill(self) -> None:
        """Kill the node; called at the end of ``BrokerProcess``."""
        self.kill_machine()


def _runs(pid: int) -> bool:
    """Whether a process still holds files and sockets; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


class ClusterRig:
    """Nodes that share one etcd; ``nodes`` has them by name."""

    def __init__(
        self, directory: Path, etcd: EtcdCluster, names: Sequence[str], *options: str, machines: Machines | None = None,
        executed: bool = False, amqp: bool = False, group: str | None = None,
    ) -> None:  # fmt: skip
        """``machines``: one for each node; None: all run on this machine. ``executed``: nodes are started by exec, never
        forked. ``group``: the nodes' group, if several share the etcd."""
        self.directory = directory
        self.group = group or GROUP
        if group is not None:
            options = (*options, "--group", group)
        self.etcd = etcd
        self.nodes = {
            name: ClusterNode(
                directory, name, etcd, *options, machine=machines[at] if machines is not None else None, executed=executed,
                amqp=amqp,
            )
            for at, name in enumerate(names)
        }

    @property
    def urls(self) -> list[str]:
        """The URLs of all nodes, for ``toymq.connect``."""
        return [node.url for node in self.nodes.values()]

    async def agreed(self, call: Callable[[EtcdAgreement], Awaitable[object]]) -> object:
        agreement = EtcdAgreement(EtcdOptions(self.etcd.urls), CLUSTER, self.group)
        try:
            return await call(agreement)
        finally:
            await agreement.close()

    def make(self, min_in_sync: int = 1, ttl_s: float = 2.0) -> None:
        """Make the cluster in etcd, as ``toymqctl cluster init`` does."""
        settings = ClusterSettings(UUID if self.group == GROUP else str(uuid.uuid4()), len(self.nodes), min_in_sync, ttl_s)
        asyncio.run(self.agreed(lambda agreement: agreement.create_settings(settings)))

    @contextlib.contextmanager
    def running(self, min_in_sync: int, ttl_s: float) -> Iterator["ClusterRig"]:
        """Make the cluster and start all nodes; kill them at the end."""
        self.make(min_in_sync, ttl_s)
        try:
            self.start()
            yield self
        finally:
            for node in self.nodes.values():
                node.kill_machine()

    def start(self) -> None:
        """Start all nodes, and wait until they answer."""
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.take_ready_line(node.read_ready_line())

    async def state(self) -> GroupState:
        found = await self.agreed(lambda agreement: agreement.read())
        assert isinstance(found, GroupState)
        return found

    async def seats(self) -> list[Seat]:
        """Return what each node reports of itself in etcd. Raises: EtcdError."""
        found = await self.agreed(lambda agreement: agreement.seats())
        assert isinstance(found, list)
        return found

    async def until(self, what: str, holds: Callable[[GroupState], bool]) -> GroupState:
        """Wait until ``holds`` is true of the group's state in etcd. Raises: AssertionError, with that state and the logs."""
        until = MONOTONIC() + WAIT_S
        agreement = EtcdAgreement(EtcdOptions(self.etcd.urls), CLUSTER, self.group)
        try:
            state: GroupState | None = None
            while True:
                with contextlib.suppress(EtcdError):  # its own leader may have gone with a machine
                    state = await agreement.read()
                    if holds(state):
                        return state
                if MONOTONIC() > until:
                    raise AssertionError(f"not within {WAIT_S:g} s: {what}\n{state}\n{self.logs()}")
                await asyncio.sleep(0.05)
        finally:
            await agreement.close()

    async def leader(self, *, other_than: str | None = None) -> ClusterNode:
        """Wait for a leader, and return its node."""
        state = await self.until(
            f"a leader other than {other_than}", lambda s: s.leader is not None and s.leader.member.name != other_than
        )
        assert state.leader is not None
        return self.nodes[state.leader.member.name]

    async def in_sync(self, count: int) -> None:
        """Wait until so many copies are in sync."""
        await self.until(
            f"{count} in sync", lambda s: s.leader is not None and s.in_sync is not None and len(s.in_sync.members) == count
        )

    def logs(self) -> str:
        there = {name: node.log_path for name, node in self.nodes.items() if node.log_path.exists()}
        return "\n".join(f"== {name}\n{path.read_text()[-6000:]}" for name, path in there.items())

    async def settled_differences(self) -> list[str]:
        """Wait until the nodes' directories are equal, and still are a moment later: a comparison takes time, and offsets are
        flushed after acks. Returns: the differences that remain after a while."""
        until, equal_since = MONOTONIC() + WAIT_S, None
        while True:
            found, now = self.differences(), MONOTONIC()
            equal_since = None if found else equal_since or now
            if now > until or (equal_since is not None and now - equal_since > QUIET_S):
                return found
            await asyncio.sleep(0.1)

    def differences(self) -> list[str]:
        """Return the shared files in which the directories differ, ignoring the space reserved at the end of a log."""
        roots = [node.data_dir for node in self.nodes.values()]
        walked = [(root, Path(directory, file)) for root in roots for directory, _, files in os.walk(root) for file in files]
        found = []
        for name in filter(is_file, sorted({str(path.relative_to(root)) for root, path in walked})):
            contents = [written_bytes(root / name) for root in roots]
            if any(content != contents[0] for content in contents):
                found.append(f"{name}: {[len(content) if content is not None else None for content in contents]}")
        return found


def written_bytes(path: Path) -> bytes | None:
    """Return the content of a node's file, without the space reserved at the end of a log; None if the file does not exist: a
    running node replaces files at any time."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    return content.rstrip(b"\0") if path.suffix == ".log" else content


@contextlib.contextmanager
def running_cluster(
    directory: Path, *options: str, names: Sequence[str] = ("n1", "n2", "n3"), members: int = 1, min_in_sync: int = 1,
    ttl_s: float = 2.0, amqp: bool = False,
) -> Iterator[ClusterRig]:  # fmt: skip
    """Start etcd and all nodes; kill them at the end."""
    with (
        running_etcd(directory, members) as etcd,
        ClusterRig(directory, etcd, names, *options, amqp=amqp).running(min_in_sync, ttl_s) as rig,
    ):
        yield rig


@contextlib.contextmanager
def groups_on_machines(
    directory: Path, machines: Machines, groups: Sequence[str], *options: str, ttl_s: float = 2.0
) -> Iterator[dict[str, ClusterRig]]:
    """Start groups as ``running_groups`` does, with a node of each group and a member of etcd on each machine. This thread
    enters the clients' network. A single group must be ``GROUP``, for which no option is given."""
    with etcd_on_machines(directory, machines) as etcd, contextlib.ExitStack() as running:
        rigs = {}
        for name in groups:
            names = [f"n{machine.number}" if name == GROUP else f"{name}{machine.number}" for machine in machines]
            group = None if name == GROUP else name
            rigs[name] = ClusterRig(directory, etcd, names, *options, machines=machines, group=group)
        for rig in rigs.values():
            running.enter_context(rig.running(1, ttl_s))
        yield rigs


@contextlib.contextmanager
def running_groups(
    directory: Path, nodes: Mapping[str, Sequence[str]], *options: str, ttl_s: float = 2.0, etcd: EtcdCluster | None = None
) -> Iterator[dict[str, ClusterRig]]:
    """Start etcd and several groups, given the names of their nodes; kill them at the end."""
    with contextlib.ExitStack() as running:
        etcd = etcd or running.enter_context(running_etcd(directory, 1))
        rigs = {name: ClusterRig(directory, etcd, names, *options, group=name) for name, names in nodes.items()}
        for rig in rigs.values():
            rig.make(1, ttl_s)
        for rig in rigs.values():
            for node in rig.nodes.values():
                running.callback(node.kill_machine)
            rig.start()
        yield rigs


class Load:
    """Publishes messages with keys to a topic until it is stopped, and remembers which got OK. A context manager."""

    def __init__(self, urls: list[str], topic: str = "jobs", window: int = 32) -> None:
        self._urls = urls
        self._topic = topic
        self._window = window
        self.acked: dict[bytes, int | None] = {}
        """Id by body; None after a repeat, whose id is not known."""
        self.gaps: list[float] = []
        """Times between two OKs that were longer than 100 ms."""
        self.failed: list[str] = []
        self._stop = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Load":
        self._task = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        self._stop = True
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        number, last = 0, MONOTONIC()
        async with await toymq.connect(self._urls, timeout_s=WAIT_S, wait_s=WAIT_S) as client:
            while not self._stop:
                bodies = [b"%d" % (number + at) for at in range(self._window)]
                number += self._window
                outcomes = await asyncio.gather(*(client.pub(self._topic, body) for body in bodies), return_exceptions=True)
                for body, outcome in zip(bodies, outcomes, strict=True):
                    if isinstance(outcome, BaseException):
                        self.failed.append(repr(outcome))
                        if isinstance(outcome, toymq.RequestError) and outcome.retryable:
                            await asyncio.sleep(0.02)
                    else:
                        self.acked[body] = None if outcome.duplicate else outcome.msg_id  # of DUP it may be a later one
                        now = MONOTONIC()
                        if now - last > 0.1:
                            self.gaps.append(now - last)
                        last = now

    async def more(self, count: int = 1000, within_s: float = WAIT_S) -> None:
        """Wait until ``count`` more messages got OK."""
        wanted, until = len(self.acked) + count, MONOTONIC() + within_s
        while len(self.acked) < wanted:
            assert self._task is not None
            if self._task.done():
                self._task.result()
            assert MONOTONIC() < until, f"{len(self.acked)} got OK, {wanted} were waited for; {self.failed[-3:]}"
            await asyncio.sleep(0.02)

    async def lost(self) -> list[bytes]:
        """Return the messages that got OK but are not delivered now under the id that the OK had."""
        found: dict[bytes, list[int]] = {}
        async with (
            await toymq.connect(self._urls, timeout_s=WAIT_S, wait_s=WAIT_S) as client,
            client.sub(self._topic, "judge") as messages,
        ):
            missing = set(self.acked)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAIT_S):
                    async for message in messages:
                        found.setdefault(message.payload, []).append(message.id)
                        missing.discard(message.payload)
                        await message.ack()
                        if not missing:
                            break
        return [body for body, at in self.acked.items() if body not in found or (at is not None and at not in found[body])]
