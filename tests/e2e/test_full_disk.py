"""A disk that is really full: a 16 MiB file system under a real broker."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.requirements import require

MIB = 1024 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "toymq-test", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@require("tmpfs")
@pytest.mark.parametrize(("reserve", "code"), [("0", b"DISK_FULL"), ("2MiB", b"DISK_LOW")])
def test_a_full_disk(small_disk: Path, reserve: str, code: bytes) -> None:
    """The process lives, publishers get an error on a live socket, consumers drain, publishing resumes."""
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
