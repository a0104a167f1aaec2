"""A connection's transport as uvicorn sees it: one write for a response, and no more read than can be served."""

import asyncio
from collections.abc import Callable

import pytest

from toymq_py.gateway.buffered_transport import COLLECTED_BYTES, BufferedTransport


class Transport:
    """Keeps what is called."""

    def __init__(self) -> None:
        self.calls: list[str | bytes] = []

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def close(self) -> None:
        self.calls.append("close")

    def is_closing(self) -> bool:
        return "close" in self.calls

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


class Loop:
    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.soon.append(call)


@pytest.fixture
def rig() -> tuple[BufferedTransport, Transport, Loop]:
    transport, loop = Transport(), Loop()
    return BufferedTransport(transport, loop), transport, loop  # type: ignore[arg-type]  # as much of both as is needed


def test_what_is_written_in_one_pass_goes_out_at_its_end(rig: tuple[BufferedTransport, Transport, Loop]) -> None:
    outgoing, transport, loop = rig
    outgoing.write(b"head ")
    outgoing.write(b"body")
    assert transport.calls == []
    (end_of_pass,) = loop.soon
    end_of_pass()
    assert transport.calls == [b"head body"]


def test_what_is_complete_does_not_wait_for_the_pass(rig: tuple[BufferedTransport, Transport, Loop]) -> None:
    outgoing, transport, loop = rig
    outgoing.write(b"a")
    outgoing.flush()
    loop.soon[0]()
    assert transport.calls == [b"a"], "once"
    outgoing.write(b"b")
    outgoing.close()
    assert transport.calls == [b"a", b"b", "close"], "the end comes behind what was written"


def test_nothing_is_written_to_who_has_gone(rig: tuple[BufferedTransport, Transport, Loop]) -> None:
    """Found by a client that sent requests ahead and left: uvloop raises there, which looked like a bug of the application."""
    outgoing, transport, _ = rig
    outgoing.write(b"a")
    transport.close()
    outgoing.flush()
    assert transport.calls == ["close"]


def test_reading_goes_on_when_nobody_minds_any_more(rig: tuple[BufferedTransport, Transport, Loop]) -> None:
    outgoing, transport, _ = rig
    outgoing.pause_reading()
    outgoing.hold_reading(held=True)
    outgoing.resume_reading()
    assert set(transport.calls) == {"pause"}
    assert not outgoing.reads
    outgoing.hold_reading(held=False)
    assert transport.calls[-1] == "resume"
    assert outgoing.reads


def test_what_is_much_does_not_wait_for_the_pass(rig: tuple[BufferedTransport, Transport, Loop]) -> None:
    """Else nobody says that it is enough, and all that a pass writes is in memory."""
    outgoing, transport, loop = rig
    half = bytes(COLLECTED_BYTES // 2)
    for _ in range(4):
        outgoing.write(half)
    assert transport.calls == [half + half, half + half]
    outgoing.write(b"rest")
    for end_of_pass in loop.soon:
        end_of_pass()
    assert transport.calls[2:] == [b"rest"]


async def test_the_rest_is_the_transports_own() -> None:
    class Asked(asyncio.Transport):
        def get_extra_info(self, name: str, default: object = None) -> object:
            return f"{name}!"

    outgoing = BufferedTransport(Asked(), asyncio.get_running_loop())
    assert outgoing.get_extra_info("peername") == "peername!"
