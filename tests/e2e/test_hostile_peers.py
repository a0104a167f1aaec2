"""Hostile loads on a real broker: other clients are answered, memory and descriptors are bounded and freed, the broker works.

The default run is smaller, and "answered" means within seconds, since the machine may be busy. In the torture part loads have
their full size, the 99th percentile of another client's PINGs is below 50 ms, and ``-s`` shows the figures."""

import os
import resource
import signal
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.broker_process import BrokerProcess, Wire
from tests.support.hostile_load import MIB, RSS_FACTOR, Load, Seen, Watch, worked_s
from toymq_py.runtime.heap_trimming import LATER_S

ANSWERED_WITHIN_MS = 2000
P99_MS = 50
ATTEMPTS = 3
"""A neighbour on the machine only ever makes an answer slower: one attempt in which all is well shows that the broker can."""
INFLIGHT_MIB = 4
BACKLOG = 10_000
OTHERS_WORK_S = 0.12
"""What the broker may do between a publish and its answer: three passes of the loop with a step each, and some room."""
DESCRIPTORS_SPARE = 400
"""Of the clients' and the broker's processes, for other things than connections."""


class Case(NamedTuple):
    """A load: what it does, how much by default and in torture, how long (None: until it is over), and what it may cost."""

    behaviour: str
    many: int
    torture_many: int
    for_s: float | None
    torture_for_s: float | None
    most_mib: int


LOADS = [
    Case("slowloris", 300, 2000, 0.8, 20, 60),
    Case("subscribes-and-never-reads", 10, 50, 0.4, 10, 60),
    Case("publishes-and-never-reads", 3, 10, 0.4, 10, 150),
    Case("fetches-and-never-reads", 5, 20, 0.4, 10, 300),
    Case("pipeline-of-ping", 30_000, 1_000_000, None, None, 40),
    Case("pipeline-of-fetch", 4_000, 1_000_000, None, None, 80),
    Case("pipeline-of-fetch-nothing", 8_000, 1_000_000, None, None, 40),
    Case("pipeline-of-bad", 20_000, 1_000_000, None, None, 40),
    Case("pipeline-of-describe", 4_000, 200_000, None, None, 40),
    Case("pipeline-of-ack-lists", 400, 20_000, None, None, 40),
]


def broker_on(path: Path, *options: str, descriptors: int | None = None) -> BrokerProcess:
    inflight = ("--max-inflight-bytes", f"{INFLIGHT_MIB}MiB")
    return BrokerProcess(path, "--max-connections", "20000", *inflight, *options, descriptors=descriptors)


def prepare(wire: Wire, behaviour: str) -> None:
    """Make topic "t" with a record, or with a backlog for loads that read, and topic "replies"."""
    records = BACKLOG if behaviour.endswith("never-reads") else 1
    for _ in range(0, records, 1000):
        run = min(records, 1000)
        wire.send(b"PUB t - 1000\n%b\n" % bytes(1000) * run)
        assert all(wire.line().startswith(b"OK ") for _ in range(run))
    assert wire.ask(b"PUB replies - 1\nx\n") == b"OK 0"


def check(seen: Seen, most_mib: int) -> None:
    assert max(seen.pings_ms) < ANSWERED_WITHIN_MS, seen
    assert seen.rss_most - seen.rss_before < most_mib * MIB, seen
    assert seen.rss_after < seen.rss_limit, seen
    assert seen.descriptors_after <= seen.descriptors_before + 2, f"a segment may have been made meanwhile: {seen}"


def check_it_works(broker: BrokerProcess) -> None:
    """Check that a new client can publish and consume, and that the broker ends well and has logged no bug."""
    with broker.connect() as wire:
        assert wire.ask(b"PUB after - 5\nhello\n") == b"OK 0"
        assert wire.ask(b"SUB after c\n") == b"OK 1"
        assert wire.message() == (0, 1, b"hello")
        assert wire.ask(b"ACK after c 0 sync=1\n") == b"OK 1"
    broker.stop()
    code, errors = broker.ended()
    assert code == 0
    assert "Traceback" not in errors


def complete(load: Case, seen: Seen, count: int) -> bool:
    """Return whether a pipeline got all its answers."""
    return not load.behaviour.startswith("pipeline") or seen.report["answers"] == count


@pytest.mark.parametrize("load", LOADS, ids=[load.behaviour for load in LOADS])
def test_a_hostile_client_harms_nobody_else(tmp_path: Path, load: Case) -> None:
    with broker_on(tmp_path / "d") as broker, broker.connect() as wire:
        prepare(wire, load.behaviour)
        seen = Watch(broker, wire).under(load.behaviour, load.many, for_s=load.for_s)
        check(seen, load.most_mib)
        assert complete(load, seen, load.many), seen
        check_it_works(broker)


@pytest.mark.torture
@pytest.mark.parametrize("load", LOADS, ids=[load.behaviour for load in LOADS])
def test_others_have_a_p99_below_50_ms_beside(tmp_path: Path, load: Case) -> None:
    p99s = []
    for attempt in range(ATTEMPTS):
        with broker_on(tmp_path / f"d{attempt}") as broker, broker.connect() as wire:
            prepare(wire, load.behaviour)
            seen = Watch(broker, wire).under(load.behaviour, load.torture_many, for_s=load.torture_for_s)
            check(seen, 2 * load.most_mib)
            assert complete(load, seen, load.torture_many), seen
            check_it_works(broker)
        p99s.append(seen.percentile_ms(0.99))
        if p99s[-1] < P99_MS:
            return
    pytest.fail(f"p99 {p99s} ms")


def room_for_connections(wanted: int) -> int:
    """Return how many connections this machine allows: descriptors of one process, source ports to one address."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    return min(wanted, hard - DESCRIPTORS_SPARE, high - low - DESCRIPTORS_SPARE)


def test_two_thousand_connections_come_and_go(tmp_path: Path) -> None:
    """Idle ones, half lines, half bodies, garbage; ended by FIN or reset, all at once."""
    count = room_for_connections(2000)
    with broker_on(tmp_path / "d") as broker, broker.connect() as wire:
        prepare(wire, "crowd")
        seen = Watch(broker, wire).under("crowd", count, for_s=0.2)
        check(seen, 60)
        assert seen.report["connections"] == count
        check_it_works(broker)


@pytest.mark.torture
def test_ten_thousand_connections_come_and_go(tmp_path: Path) -> None:
    """Three times on one broker: at first memory must return to within 20 % and the slack of a cold start, later to within 20
    %."""
    count = room_for_connections(10_000)
    assert count == 10_000, "this machine allows fewer"
    with broker_on(tmp_path / "d") as broker, broker.connect() as wire:
        prepare(wire, "crowd")
        crowds = [Watch(broker, wire).under("crowd", count, for_s=3, settle_s=LATER_S + 3) for _ in range(3)]
        check_it_works(broker)
    for seen in crowds:
        check(seen, 200)
    assert crowds[-1].rss_after < crowds[0].rss_after * RSS_FACTOR
    assert crowds[-1].rss_after < crowds[-1].rss_before * RSS_FACTOR
    assert min(seen.percentile_ms(0.99) for seen in crowds) < P99_MS


def test_a_crowd_never_takes_the_descriptors_of_the_disk(tmp_path: Path) -> None:
    """Found by review: while 600 clients connected to a broker with room for 200, a topic that could not open its segment was
    closed for publishing until a restart."""
    with broker_on(tmp_path / "d", descriptors=400) as broker, broker.connect() as wire:
        prepare(wire, "crowd")
        with Load(broker, "crowd", 600) as load:
            assert load.line() == "on\n"
            assert wire.ask(b"PUB new - 1\nx\n") == b"OK 0", "the disk has its descriptors"
            assert wire.ask(b"SUB t c\n") == b"OK 1"
            assert wire.message() == (0, 1, bytes(1000))
            assert wire.ask(b"ACK t c 0 sync=1\n") == b"OK 1"
            load.end()
            load.line()
        seen = Watch(broker, wire).under("crowd", 600, for_s=1, admitted=False)
        check(seen, 30)
        assert 200 <= seen.descriptors_most <= 380, "those being let in or refused count, too"
        check_it_works(broker)


def test_topics_never_take_the_descriptors_of_connections(tmp_path: Path) -> None:
    """Found: each topic held its newest segment open: with 600 topics and 400 descriptors no more connections were accepted."""
    with broker_on(tmp_path / "d", descriptors=400) as broker, broker.connect() as wire:
        for n in range(600):
            assert wire.ask(b"PUB topic.%d - 1\nx\n" % n) == b"OK 0"
        others = [broker.connect() for _ in range(100)]
        for number, other in enumerate(others):
            assert other.ask(b"PUB topic.%d - 1\ny\n" % number) == b"OK 1"
            assert other.ask(b"SUB topic.%d c\n" % number) == b"OK 1"
            assert [other.message()[2] for _ in range(2)] == [b"x", b"y"]
            assert other.ask(b"ACK topic.%d c 0-1 sync=1\n" % number) == b"OK 2"
        assert broker.descriptors() <= 300
        for other in others:
            other.close()


def test_idle_connections_hold_nothing_of_what_they_said(tmp_path: Path) -> None:
    """Found: each idle connection kept its last chunk, its last commands with their bodies, and its last answers, until it sent
    something else: 3 MiB for every MiB published."""
    with broker_on(tmp_path / "d") as broker, broker.connect() as other:
        prepare(other, "")
        before = broker.rss_bytes()
        wires = [broker.connect() for _ in range(50)]
        for wire in wires:
            wire.send(b"PUB t - %d\n%b\n" % (MIB, bytes(MIB)))
            assert wire.line().startswith(b"OK ")
        for wire in wires:
            assert wire.ask(b"FETCH t 1 1\n").startswith(b"BATCH t 1 2 ")
            wire.read(MIB + 31)
        assert broker.rss_bytes() - before < 30 * MIB
        for wire in wires:
            wire.close()


def test_however_many_connections_one_token_has_another_waits_for_a_few_passes(tmp_path: Path) -> None:
    """Found by a trial: each of fifty connections of one token that connected, asked for 2 MiB and read nothing counted as new,
    and so had its turn before another token's publish was answered: a second of the broker's work, and more as they
    reconnected."""
    (tmp_path / "auth.toml").write_text("".join(
        f'[[token]]\nname = "{name}"\nsha256 = "{sha256(name.encode()).hexdigest()}"\n'
        f'publish = ["{name}"]\nsubscribe = ["{name}"]\n' for name in ("alice", "bob")
    ))  # fmt: skip
    with broker_on(tmp_path / "d", "--auth-file", str(tmp_path / "auth.toml")) as broker, broker.connect() as bob:
        with broker.connect() as alice:
            assert alice.ask(b"HELLO 1 auth=alice\n").startswith(b"HELLO ")
            for _ in range(20):
                alice.send(b"PUB alice - 1000\n%b\n" % bytes(1000) * 100)
                assert all(alice.line().startswith(b"OK ") for _ in range(100))
        assert bob.ask(b"HELLO 1 auth=bob\n").startswith(b"HELLO ")
        waited_s = [work_until_served(broker, bob) for _ in range(ATTEMPTS)]
        assert min(waited_s) < OTHERS_WORK_S, waited_s


def work_until_served(broker: BrokerProcess, bob: Wire) -> float:
    """Return the work of the broker until it answers a publish and a newcomer of one token, which came after sixty-four
    connections of another."""
    with ExitStack() as stack:
        crowd = [stack.enter_context(broker.connect()) for _ in range(64)]
        newcomer = stack.enter_context(broker.connect())
        assert bob.ask(b"PUB bob - 1\nx\n").startswith(b"OK "), "those that came before it are accepted"
        os.kill(broker.pid, signal.SIGSTOP)  # so that all of it is there when the loop looks
        try:
            for wire in crowd:
                wire.send(b"HELLO 1 auth=alice\n" + b"FETCH alice 0 5000 max_bytes=2097152\n" * 100)
            newcomer.send(b"HELLO 1 auth=bob\nPING\n")
            bob.send(b"PUB bob - 1\nx\n")
            before = worked_s(broker.pid)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert bob.line().startswith(b"OK ")
        assert [newcomer.line()[:7], newcomer.line()] == [b"HELLO 1", b"PONG"]
        return worked_s(broker.pid) - before
