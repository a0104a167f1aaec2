"""A disk that is really full: a 16 MiB file system under a real broker."""

import contextlib
import threading
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.requirements import require

MIB = 1024 * 1024


@require("tmpfs")
@pytest.mark.parametrize(("reserve", "code"), [("0", b"DISK_FULL"), ("2MiB", b"DISK_LOW")])
def test_a_full_disk(small_disk: Path, reserve: str, code: bytes) -> None:
    """The process lives, publishers get an error on a live socket, consumers drain, and publishing resumes."""
    filler = small_disk / "filler"
    filler.write_bytes(bytes(6 * MIB))
    options = ["--min-free-bytes", reserve, "--segment-bytes", "1MiB"]
    body = bytes(10_000)
    accepted = []
    with BrokerProcess(small_disk / "d", *options) as broker:
        with broker.connect() as wire, broker.connect() as reader:
            for _ in range(3000):
                answer = wire.ask(b"PUB t - 10000\n%b\n" % body)
                if answer.startswith(b"ERR"):
                    break
                accepted.append(int(answer.split()[1]))
            assert answer.startswith(b"ERR " + code), answer
            assert len(accepted) > 300, "it was refused long before the disk was full"
            for _ in range(20):
                assert wire.ask(b"PUB t - 10000\n%b\n" % body).startswith(b"ERR DISK_"), "the socket lives"
            assert wire.ask(b"PING\n") == b"PONG"

            assert reader.ask(b"SUB t c window=100000\n") == b"OK 1"
            got = [reader.message()[0] for _ in accepted]
            assert got == accepted, "everything that was answered OK is delivered from the full disk"
            assert reader.ask(b"ACK t c 0-%d\n" % accepted[-1]) == b"OK %d" % len(accepted)

            filler.unlink()
            answer = b"ERR"
            for _ in range(100_000):
                answer = wire.ask(b"PUB t - 5\nagain\n")
                if not answer.startswith(b"ERR DISK_"):
                    break
            assert answer == b"OK %d" % (accepted[-1] + 1), "publishing resumes by itself, and no id was skipped"
            assert reader.message()[2] == b"again"
        broker.restart()
        with broker.connect() as wire:
            first, following = map(int, wire.ask(b"OFFSETS t\n").split()[2:])
            assert following == accepted[-1] + 2
            assert first <= following


@require("tmpfs")
def test_acks_that_cannot_be_flushed_are_flushed_later(small_disk: Path) -> None:
    with BrokerProcess(small_disk / "d") as broker:
        with broker.connect() as wire:
            assert wire.ask(b"PUB t - 1\nx\n") == b"OK 0"
            wire.ask(b"SUB t c\n")
            wire.message()
            filler = small_disk / "filler"
            with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(65_536))
            assert wire.ask(b"ACK t c 0 sync=1\n").startswith(b"ERR DISK_FULL"), "it says so"
            filler.unlink()
            assert wire.ask(b"ACK t c 0 sync=1\n") == b"OK 0", "acked already; now that is on the disk"
        broker.restart()
        with broker.connect() as wire:
            wire.ask(b"SUB t c\n")
            wire.nothing_before_pong()


class Flood:
    """Publishes as fast as the broker reads, on a thread of its own, and collects the answers."""

    BODY = bytes(10_000)
    COUNT = 1000

    def __init__(self, broker: BrokerProcess) -> None:
        self.answers: list[bytes] = []
        self._wire = broker.connect()
        self._threads = [threading.Thread(target=work) for work in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        frame = b"PUB t - 10000\n%b\n" % self.BODY
        for _ in range(self.COUNT):
            self._wire.send(frame)

    def _receive(self) -> None:
        while len(self.answers) < self.COUNT and (line := self._wire.line()):
            self.answers.append(line)

    def wait(self) -> "Flood":
        for thread in self._threads:
            thread.join(60)
        self._wire.close()
        return self


@require("tmpfs")
def test_a_disk_that_fills_under_full_load(small_disk: Path) -> None:
    """No connection is lost, every publish is answered, every message with OK is there, and publishing resumes."""
    with BrokerProcess(small_disk / "d", "--segment-bytes", "1MiB", "--retain-acked-for", "0") as broker:
        floods = [flood.wait() for flood in [Flood(broker) for _ in range(4)]]
        assert all(len(flood.answers) == Flood.COUNT for flood in floods), "every publish is answered"
        accepted = {int(line.split()[1]) for flood in floods for line in flood.answers if line.startswith(b"OK")}
        refused = [line for flood in floods for line in flood.answers if not line.startswith(b"OK")]
        assert len(accepted) > 500
        assert refused
        assert all(line.startswith(b"ERR DISK_") for line in refused), refused[0]
        assert accepted == set(range(len(accepted))), "no id is skipped, none is given twice"
        with broker.connect() as reader:
            assert reader.ask(b"SUB t c window=100000\n") == b"OK 1"
            assert [reader.message()[0] for _ in accepted] == sorted(accepted), "consumers drain from the full disk"
            assert reader.ask(b"ACK t c 0-%d\n" % (len(accepted) - 1)) == b"OK %d" % len(accepted)
        with broker.connect() as wire:
            answers = (wire.ask(b"PUB t - 5\nagain\n") for _ in range(100_000))
            answer = next(answer for answer in answers if not answer.startswith(b"ERR DISK_"))
            assert answer == b"OK %d" % len(accepted), "what was acked makes room by itself"
