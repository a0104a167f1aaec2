"""One zeroed page in a log of 20,000 messages: its records are lost and named, everything else is served."""

import json
from pathlib import Path

import httpx
import pytest

from tests.support.broker_process import BrokerProcess, Wire, run
from toymq import sync
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.offline.dump import dump_topic
from toymq_py.storage.record import Frame

COUNT = 20_000
PAGE_BYTES = 4096
CHUNK = 5000


def publish(wire: Wire) -> None:
    for first in range(0, COUNT, CHUNK):
        bodies = [b"message %d" % n for n in range(first, first + CHUNK)]
        wire.send(b"".join(b"PUB t - %d\n%b\n" % (len(body), body) for body in bodies))
        for n in range(first, first + CHUNK):
            assert wire.line() == b"OK %d" % n


def zero_page(path: Path, page: int) -> set[int]:
    """Zero a page. Returns: the ids whose records had a byte there."""
    at, hit = 0, set()
    for frame in dump_topic(RealFileSystem(), str(path.parent)):
        assert isinstance(frame, Frame)
        if at < (page + 1) * PAGE_BYTES and at + frame.size > page * PAGE_BYTES:
            hit.add(frame.msg_id)
        at += frame.size
    with path.open("r+b") as file:
        file.seek(page * PAGE_BYTES)
        file.write(bytes(PAGE_BYTES))
    return hit


@pytest.mark.parametrize("way", ["topic", "pattern", "http"])
def test_a_pull_without_a_wait_says_nothing_is_there_when_nothing_is(tmp_path: Path, way: str) -> None:
    """Found: beside damage that was not known yet, PULL answered OK 0 several times, and a program that pulls until 0 stopped
    early."""
    with BrokerProcess(tmp_path / "d", "--segment-bytes", "16KiB", "--http", "127.0.0.1:0") as broker:
        with sync.connect(f"toymq://127.0.0.1:{broker.port}") as client:
            list(client.pub_many("t.x", [b"%d." % n + bytes(300) for n in range(100)]))
        broker.stop()
        path = min((tmp_path / "d" / "topics" / "t.x").glob("*.log"))
        data = bytearray(path.read_bytes())
        data[3460] ^= 1
        path.write_bytes(data)
        broker.start()
        ids: list[int] = []
        with sync.connect(f"toymq://127.0.0.1:{broker.port}") as client:
            while True:
                found = ids_of(broker, client, way)
                if not found:
                    break
                ids += found
    assert len(ids) == 99


def ids_of(broker: BrokerProcess, client: sync.Client, way: str) -> list[int]:
    if way == "http":
        answer = httpx.get(f"{broker.http}v1/topics/t.x/messages?consumer=w&max=1000", timeout=60)
        return [message["id"] for message in answer.json()["messages"]] if answer.status_code == 200 else []
    return [message.id for message in client.pull("t.x" if way == "topic" else "t.*", "w", 1000)]


def test_a_zeroed_page_costs_its_own_messages(tmp_path: Path) -> None:
    log = tmp_path / "d" / "topics" / "t" / f"{0:020d}.log"
    with BrokerProcess(tmp_path / "d") as broker:
        with broker.connect() as wire:
            publish(wire)
        broker.stop()
        assert broker.ended() == (0, "")
        hit = zero_page(log, page=log.stat().st_size // PAGE_BYTES // 2)
        assert 50 < len(hit) < 150
        said = run("verify", str(tmp_path / "d"))
        assert said.returncode == 1
        assert f"records {min(hit)} to {max(hit)} are lost" in said.stdout

        broker.start()
        with sync.connect(f"toymq://127.0.0.1:{broker.port}") as client:
            assert client.describe("t")["state"] == "degraded"
            (found,) = client.stats()["topics"]
            assert (found["state"], found["lost"]) == ("degraded", len(hit))
            subscription = client.sub("t", "c", window=COUNT)
            got = []
            for message in subscription:
                assert message.payload == b"message %d" % message.id
                got.append(message.id)
                if message.id == COUNT - 1:
                    break
            assert got == [n for n in range(COUNT) if n not in hit], "exactly that page's messages are lost"
            client.ack("t", "c", [(0, COUNT - 1)])
            assert client.pub("t", b"on it goes").msg_id == COUNT
        broker.stop()
        code, errors = broker.ended()
        assert code == 0
        assert f"records {min(hit)} to {max(hit)} are damaged and lost" in errors
    assert json.loads(run("verify", "--json", str(tmp_path / "d")).stdout)
