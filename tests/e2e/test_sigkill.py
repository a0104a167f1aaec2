"""SIGKILL at random moments: every message that got its OK is there, byte for byte, in order, under its id."""

import os
import random
import select
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess, Wire, run
from tests.support.requirements import require
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.offline.dump import dump_topic
from toymq_py.storage.record import Frame

WINDOW = 300


class Publisher:
    """Publishes keyed messages in order, and republishes those without an answer when the broker died."""

    def __init__(self, messages: list[bytes]) -> None:
        self.messages = messages
        self.ids: list[int] = []

    def publish_until_dead(self, wire: Wire, stop_at: int) -> None:
        """Publish until ``stop_at`` answers have come, or the connection ends."""
        sent = len(self.ids)
        out, tail = b"", b""
        wire.socket.setblocking(False)
        try:
            while len(self.ids) < stop_at:
                while sent < len(self.messages) and sent - len(self.ids) < WINDOW and len(out) < 1 << 20:
                    body = self.messages[sent]
                    out += b"PUB t key-%d %d\n%b\n" % (sent, len(body), body)
                    sent += 1
                readable, writable, _ = select.select([wire.socket], [wire.socket] if out else [], [], 20)
                assert readable or writable, "the broker neither reads nor answers"
                if writable:
                    out = out[wire.socket.send(out) :]
                if readable:
                    data = wire.socket.recv(1 << 16)
                    if not data:
                        return
                    *lines, tail = (tail + data).split(b"\n")
                    for line in lines:
                        verb, msg_id = line.split(b" ")[:2]
                        assert verb in (b"OK", b"DUP"), line
                        self.ids.append(int(msg_id))
        except OSError:
            return


def kill_and_compare(directory: Path, count: int, seed: int, kills: int, mode: str) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice([0, 1, 100, 1000, rng.randrange(65_537)]) for _ in range(count)]
    publisher = Publisher([rng.randbytes(size) for size in sizes])
    points = sorted(rng.sample(range(1, count), kills))
    broker = BrokerProcess(directory, "--segment-bytes", "4MiB", "--commit", mode)
    for point in [*points, count]:
        broker.start()
        with broker.connect() as wire:
            publisher.publish_until_dead(wire, point)
            broker.kill()
            publisher.publish_until_dead(wire, count)  # what was answered before the kill and not read yet
    assert len(publisher.ids) == count
    assert publisher.ids == sorted(set(publisher.ids)), "one id a message, in order"
    with broker:
        pass  # recovery mends the tail
    frames = [item for item in dump_topic(RealFileSystem(), f"{directory}/topics/t") if isinstance(item, Frame)]
    stored = {frame.msg_id: frame.payload for frame in frames}
    changed = [n for n, msg_id in enumerate(publisher.ids) if stored.get(msg_id) != publisher.messages[n]]
    assert not changed, f"seed {seed}: messages {changed[:5]} are lost or changed"
    checked = run("verify", str(directory), timeout_s=120)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("mode", ["thread", "inline"])
def test_5000_messages_and_eight_kills(tmp_path: Path, mode: str) -> None:
    kill_and_compare(tmp_path / "d", 5_000, seed=1, kills=8, mode=mode)


@pytest.mark.torture
def test_100000_messages_and_many_kills(tmp_path: Path) -> None:
    count = int(os.environ.get("TOYMQ_TORTURE_MESSAGES", "100000"))
    for seed in range(count // 5_000):
        kill_and_compare(tmp_path / str(seed), 5_000, seed=100 + seed, kills=20, mode="inline" if seed % 2 else "auto")


def test_every_answer_of_a_lone_publisher_has_its_own_sync(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker, broker.connect() as wire:
        for n in range(5):
            assert wire.ask(b"PUB t - 1\nx\n") == b"OK %d" % n
            header = wire.ask(b"STATS\n").split()
            assert b'"fsync_total": %d' % (n + 1) in wire.read(int(header[1]))
            wire.read(1)


@require("strace")
@pytest.mark.parametrize("mode", ["thread", "inline", "auto"])
def test_every_answer_of_a_lone_publisher_is_behind_a_write_and_an_fdatasync(tmp_path: Path, mode: str) -> None:
    """The order is taken from the kernel's system calls, not only from the broker's own counter."""
    trace = tmp_path / "trace"
    with BrokerProcess(tmp_path / "d", "--commit", mode) as broker, broker.connect() as wire:
        for n in range(2):  # after the second commit it knows the size of its file
            assert wire.ask(b"PUB t - 1\nx\n") == b"OK %d" % n
        calls = "trace=pwrite64,fdatasync,write,writev,sendto,sendmsg"
        command = ["strace", "-f", "-e", calls, "-o", str(trace), "-p", str(broker.pid)]
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert tracer.stderr is not None
        assert "attached" in tracer.stderr.readline()
        for n in range(2, 12):
            assert wire.ask(b"PUB t - 1\nx\n") == b"OK %d" % n
        tracer.send_signal(signal.SIGINT)
        tracer.communicate(timeout=20)
    steps, threads = [], set()
    for line in trace.read_text().splitlines():
        thread, call = line.split(maxsplit=1)
        for step, is_it in (
            ("written", "pwrite64" in call and " = " in call),
            ("synced", "fdatasync" in call and call.endswith("= 0")),
            ("answered", '"OK ' in call),
        ):
            if is_it:
                steps.append(step)
                threads.add(thread)
    assert steps == ["written", "synced", "answered"] * 10, trace.read_text()
    assert len(threads) == (1 if mode == "inline" else 2), "on the loop, or on a thread"
