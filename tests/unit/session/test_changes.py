"""A change is answered when it is on stable storage. Contract: protocol.md, "Commands"."""

import errno
import logging
from collections.abc import Callable, Iterator

import pytest

from tests.support.session_rig import SessionRig
from toymq_py.broker import Done
from toymq_py.errors import BadArgument, RequestError
from toymq_py.partition_operations import Counted
from toymq_py.protocol import commands
from toymq_py.session.changes import Changes
from toymq_py.session.gate import CHANGES_MAX, Gate
from toymq_py.session.trail import Trail

PURGE = commands.Purge("orders")


class ChangesRig(SessionRig):
    """Changes that end when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.changes = Changes(self.replies, self.gate, Trail(self.rig.broker, self.replies, "127.0.0.1"))
        self.begun: list[Done] = []


@pytest.fixture
def session() -> Iterator[ChangesRig]:
    with ChangesRig() as session:
        yield session


def test_a_setting_is_answered_when_it_is_stored(session: SessionRig) -> None:
    session.handler.apply(commands.Create("t", {"max_attempts": "3"}))
    assert session.write() == b""
    session.rig.loop.advance(0)
    assert session.write() == b"OK 0\n"
    session.apply(commands.Create("t", {"max_attempts": "4"}))
    assert session.write().startswith(b"ERR EXISTS ")


def test_a_change_is_answered_and_recorded_when_it_has_ended(session: ChangesRig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "toymq_py.audit")
    session.changes.stored(session.begun.append, count=7)
    session.changes.stored(session.begun.append, answer=lambda: b"{}\n", audited=PURGE)
    assert (session.write(), caplog.messages) == (b"", [])
    session.begun[1](None)
    assert caplog.messages == ["action=purge topic=orders token=- address=127.0.0.1 via=tcp result=OK"]
    assert session.write() == b"", "replies come in the order of the commands"
    session.begun[0](None)
    assert session.write() == b"OK 7\n{}\n"
    assert len(caplog.messages) == 1, "the first is no change of an admin's"


def test_the_number_of_messages_is_the_reply(session: ChangesRig) -> None:
    begun: list[Counted] = []
    session.changes.counted(begun.append, PURGE)
    begun[0](12, None)
    assert session.write() == b"OK 12\n"


@pytest.mark.parametrize(("error", "code"), [(OSError(errno.EIO, ""), "STORAGE_FAILED"), (BadArgument("no"), "BAD_ARGUMENT")])
def test_a_change_that_fails_is_one_error_for_each_reply(
    session: ChangesRig, caplog: pytest.LogCaptureFixture, error: OSError | RequestError, code: str
) -> None:
    session.changes.stored(session.begun.append, answer=lambda: b"never", audited=PURGE, replies=2)
    session.begun[0](error)
    assert [line.split()[:2] for line in session.write().splitlines()] == [[b"ERR", code.encode()]] * 2
    assert [line.rpartition(" ")[2] for line in caplog.messages] == [f"result={code}"]
    assert session.replies.held_bytes == 0


def test_the_gate_counts_changes_of_admins_alone(session: ChangesRig) -> None:
    for _ in range(CHANGES_MAX):
        session.changes.stored(session.begun.append)
        assert not session.gate.closed
    for _ in range(CHANGES_MAX):
        assert not session.gate.closed
        session.changes.stored(session.begun.append, audited=PURGE)
    assert session.gate.closed
    session.begun[-1](None)
    assert not session.gate.closed


@pytest.mark.parametrize("raised", [BadArgument("no"), RuntimeError("bug")])
def test_a_change_that_does_not_begin_leaves_nothing(session: ChangesRig, raised: Exception) -> None:
    def begin(done: Callable[..., None]) -> None:
        raise raised

    for _ in range(CHANGES_MAX):
        with pytest.raises(type(raised)):
            session.changes.stored(begin, audited=PURGE)
    assert not session.gate.closed
    assert session.write() == b"", "the caller replies"
