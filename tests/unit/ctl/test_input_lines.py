"""Lines of a pipe or a file, in bursts, and Ctrl-C."""

import io
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from toymq_py.records import PAYLOAD_BYTES_LIMIT
from toymqctl.input_lines import Copies, InputLines


@pytest.fixture(autouse=True)
def _interrupts_are_pythons() -> Iterator[None]:
    """Set Python's own handler of SIGINT, whatever earlier tests have left: a worker of the test suite once died of the signal
    that it sent to itself."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as source, os.fdopen(writer, "wb", buffering=0) as sink:
        yield source, sink


def all_of(lines: InputLines) -> list[list[bytes]]:
    bursts = []
    while lines.wait():
        bursts.append(list(lines.burst()))
    return bursts


def test_a_burst_is_what_is_at_hand(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    source, sink = pipe
    lines = InputLines(source)
    for written, expected in ((b"a\nb\nc", [b"a", b"b"]), (b"d", []), (b"\n\n", [b"cd", b""])):
        sink.write(written)
        assert lines.wait()
        assert list(lines.burst()) == expected
    sink.write(b"the last")
    sink.close()
    assert all_of(lines) == [[b"the last"]], "also without a newline"
    assert lines.count == 5


def test_a_long_line_arrives_in_parts(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    source, sink = pipe
    expected = [b"x" * 1_000_000, b"y"]
    thread = threading.Thread(target=lambda: (sink.write(b"\n".join(expected)), sink.close()))
    thread.start()
    assert [line for burst in all_of(InputLines(source)) for line in burst] == expected
    thread.join()


@pytest.mark.parametrize("text", [b"", b"\n", b"a", b"a\n", b"a\n\nb" * 100_000], ids=range(5))
def test_a_file_is_one_burst(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "lines"
    path.write_bytes(text)
    read: list[int] = []
    with path.open("rb") as file:
        expected = [line.removesuffix(b"\n") for line in file]
        file.seek(0)
        assert all_of(InputLines(file, read.append)) == [expected]
    assert sum(read) == len(text)
    assert all_of(InputLines(io.BytesIO(text))) == [expected]


def test_a_line_too_long_for_any_broker_ends_while_it_is_read() -> None:
    """Otherwise an input without a newline would fill the memory."""
    endless = io.BytesIO(bytes(PAYLOAD_BYTES_LIMIT + 1_000_000))
    assert len(next(InputLines(endless).burst())) > PAYLOAD_BYTES_LIMIT
    assert endless.tell() < PAYLOAD_BYTES_LIMIT + 1_000_000


def test_an_interrupt_in_a_burst_lets_it_end_with_what_was_read(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    source, sink = pipe
    sink.write(b"a\nb\nc")
    lines = InputLines(source)
    with lines.kept_on_interrupt():
        assert lines.wait()
        burst = lines.burst()
        assert next(burst) == b"a"
        sink.write(b"more\n")
        signal.raise_signal(signal.SIGINT)
        assert list(burst) == [b"b"]
        with pytest.raises(KeyboardInterrupt):
            lines.wait()
    assert (lines.count, lines.incomplete_bytes) == (2, 1)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_ends_a_wait(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    lines = InputLines(pipe[0])
    timer = threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    with lines.kept_on_interrupt():
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            lines.wait()


def test_a_second_interrupt_is_not_kept(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    lines = InputLines(pipe[0])
    with lines.kept_on_interrupt():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_an_interrupt_that_is_ignored_stays_ignored(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    """A shell ignores SIGINT for its background jobs."""
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with InputLines(pipe[0]).kept_on_interrupt():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)


def test_copies_end_behind_an_interrupt() -> None:
    """Found: Ctrl-C was raised at once, and messages under way were not counted."""
    copies = Copies(b"x", 5)
    with copies.kept_on_interrupt():
        assert copies.wait()
        items = copies.burst()
        assert next(items) == b"x"
        signal.raise_signal(signal.SIGINT)
        assert list(items) == []
        with pytest.raises(KeyboardInterrupt):
            copies.wait()
    assert copies.count == 1
    whole = Copies(b"x", 5)
    assert (whole.wait(), list(whole.burst()), whole.wait()) == (True, [b"x"] * 5, False)
