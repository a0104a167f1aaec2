"""A command that places are asked for in turn: what one refuses is the reply, and the next ones are not asked."""

from collections.abc import Callable, Sequence

import pytest

from toymq_py.errors import RequestError, ShuttingDown
from toymq_py.placement import Place
from toymq_py.session.stages import Stages

Reply = bytes | RequestError


def asked(*replies: Reply, stages: Sequence[Sequence[Place]] = (["a"], [], ["b", "c"], ["a"]), lacking: bool = False) -> tuple[
    list[Sequence[Place]], Reply
]:  # fmt: skip
    """Which places were asked, and the reply, when each stage has answered so."""
    left, found, told = list(replies), list[Sequence[Place]](), list[Reply]()

    def ask(places: Sequence[Place], answered: Callable[[bytes], None]) -> None:
        found.append(places)
        reply = left.pop(0)
        if isinstance(reply, RequestError):
            raise reply
        answered(reply)

    Stages(stages, ask, told.append, lacking=lacking).begin()
    (reply,) = told
    return found, reply


def test_each_stage_is_asked_when_those_before_have_done_it() -> None:
    assert asked(b"OK 1\n", b"OK 20\n", b"OK 300\n") == ([["a"], ["b", "c"], ["a"]], b"OK 321\n")


def test_what_is_refused_ends_it() -> None:
    assert asked(b"OK 1\n", b"ERR EXISTS x\n") == ([["a"], ["b", "c"]], b"ERR EXISTS x\n")
    assert asked(b"ERR NO_SUCH_TOPIC x\n") == ([["a"]], b"ERR NO_SUCH_TOPIC x\n")
    error = ShuttingDown("worker 1 cannot be reached")
    assert asked(b"OK 1\n", error) == ([["a"], ["b", "c"]], error)


@pytest.mark.parametrize(
    ("replies", "reply"),
    [
        ((b"OK 0\n", b"ERR NO_SUCH_TOPIC x\n", b"ERR NO_SUCH_TOPIC x\n"), b"OK 0\n"),
        ((b"ERR NO_SUCH_TOPIC x\n", b"OK 3\n", b"ERR NO_SUCH_TOPIC x\n"), b"OK 3\n"),
        ((b"ERR NO_SUCH_TOPIC x\n",) * 3, b"ERR NO_SUCH_TOPIC x\n"),
    ],
)
def test_what_is_gone_in_some_places_is_deleted(replies: Sequence[Reply], reply: bytes) -> None:
    assert asked(*replies, lacking=True)[1] == reply
