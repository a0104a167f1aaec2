"""The last answer of a connection reaches a client that is still sending."""

import asyncio
import random

import pytest

from tests.support.sim_event_loop import SimEventLoop
from toymq_py.errors import BadFraming
from toymq_py.gateway.last_answer import LINGER_BYTES, LINGER_S, LastAnswer
from toymq_py.gateway.read_ahead import ReadAhead


class Transport:
    """A transport that records the calls, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def write(self, data: bytes) -> None:
        assert data.startswith(b"HTTP/1.1 400 ")
        self.done.append("answer")

    def resume_reading(self) -> None:
        self.done.append("read")

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.done.append("end")

    def is_closing(self) -> bool:
        return "close" in self.done

    def close(self) -> None:
        self.done.append("close")

    def abort(self) -> None:
        self.done.append("abort")


def last_answer(transport: Transport, loop: asyncio.AbstractEventLoop, *, over_tls: bool = False) -> LastAnswer:
    ahead = ReadAhead(transport)  # type: ignore[arg-type]  # as much as is needed
    return LastAnswer(transport, ahead, loop, over_tls=over_tls)  # type: ignore[arg-type]


ERROR = BadFraming("no")


def test_what_comes_behind_it_is_read_for_a_moment() -> None:
    """A socket that is closed with unread bytes is reset."""
    transport, loop = Transport(), SimEventLoop(random.Random(1))
    answer = last_answer(transport, loop)
    answer.say(ERROR, lingers=True)
    answer.drop(LINGER_BYTES)
    assert transport.done == ["answer", "read", "end"]
    loop.run_until_complete(asyncio.sleep(LINGER_S))
    assert transport.done[3:] == ["close"]
    loop.close()


def test_of_what_comes_behind_it_not_all_is_read() -> None:
    transport, loop = Transport(), SimEventLoop(random.Random(1))
    answer = last_answer(transport, loop)
    answer.say(ERROR, lingers=True)
    answer.drop(LINGER_BYTES)
    answer.drop(1)
    assert transport.done[3:] == ["close"]
    loop.close()


@pytest.mark.parametrize("over_tls", [False, True])
def test_one_that_may_not_linger_is_closed_at_once(over_tls: bool) -> None:
    transport, loop = Transport(), SimEventLoop(random.Random(1))
    answer = last_answer(transport, loop, over_tls=over_tls)
    answer.say(ERROR, lingers=over_tls)
    assert transport.done == ["answer", "close"]
    loop.run_until_complete(asyncio.sleep(LINGER_S))
    assert transport.done[2:] == ["abort"] * over_tls, "a client of TLS does not answer the close"
    loop.close()
