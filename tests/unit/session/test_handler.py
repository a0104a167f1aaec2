"""Commands applied to the broker, and the replies to commands that fail. Contract: protocol.md, "Errors"."""

import errno
from collections.abc import Iterator

import pytest

from tests.support.passing_rig import commands as parsed
from tests.support.session_rig import SessionRig
from tests.support.topic_commands import ONE_PARTITION, TEXTS, kinds_with_a_topic
from tests.support.worker_processes import topic_of
from toymq_py.consumer_options import Mode
from toymq_py.placement import Placement
from toymq_py.protocol import Ack, Command, Nack, Publish, SettlementRun, Touch, commands
from toymq_py.session import refused_sequences
from toymq_py.session.reader import Reader


@pytest.fixture
def session() -> Iterator[SessionRig]:
    with SessionRig() as session:
        yield session


def test_a_refused_run_of_publishes_has_one_error_each(session: SessionRig) -> None:
    session.apply(Publish("t.dlq", [b"", b"", b""], [b"x", b"y", b"z"]))
    assert [line.split()[:2] for line in session.write().splitlines()] == [[b"ERR", b"FORBIDDEN"]] * 3
    assert session.rig.broker.metrics.errors == {"FORBIDDEN": 3}


def test_producers_that_go_to_another_worker_are_not_refused_ones(session: SessionRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refused_sequences, "REFUSED_BYTES_MAX", 1)
    session.rig.broker.placement = Placement(0, ("host:1", "host:2"))
    for name in (b"p", b"q", b"r"):
        session.apply(Publish(topic_of(1, 2), [name], [b"x"], seqs=[0]))
    assert [line.split()[1] for line in session.write().splitlines()] == [b"MOVED"] * 3
    session.apply(Publish(topic_of(0, 2), [b"s"], [b"x"], seqs=[0]))
    session.rig.loop.advance(0)
    assert session.write() == b"OK 0\n"


def test_a_client_of_too_many_refused_producers_is_told_to_connect_again(
    session: SessionRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_sequences, "REFUSED_BYTES_MAX", 1000)
    session.apply(Publish("t.dlq", [b"p", b"q", b"r", b"s"], [b"x"] * 4, seqs=[1] * 4))
    assert session.write().count(b"ERR FORBIDDEN") == 4
    assert not session.handler.ended
    session.apply(Publish("t", [b"p", b"stranger"], [b"x"] * 2, seqs=[1, 1]))
    told = b"ERR OUT_OF_SEQUENCE too many producers of this connection were refused: it is closed, connect again\n"
    assert session.write() == told * 2
    assert session.handler.ended


@pytest.mark.parametrize("verb", [Ack, Nack, Touch])
def test_a_refused_run_has_one_error_each(session: SessionRig, verb: type[Ack | Nack | Touch]) -> None:
    session.apply(SettlementRun(verb("t", "c", ((1, 1),)), [1, 2, 3]))
    assert [line.split()[:2] for line in session.write().splitlines()] == [[b"ERR", b"NO_SUCH_TOPIC"]] * 3
    assert session.rig.broker.metrics.errors == {"NO_SUCH_TOPIC": 3}


def test_a_run_of_synced_acks_is_answered_when_they_are_on_the_disk(session: SessionRig) -> None:
    session.rig.publish("t", *[b"x"] * 3)
    session.rig.take(session.rig.subscribe("t"))
    run = SettlementRun(Ack("t", "c", ((0, 0),), sync=True), [0, 1, 7])
    session.handler.apply(run)
    assert session.write() == b"", "it is not on the disk"
    session.rig.loop.advance(0)
    assert session.write() == b"OK 1\nOK 1\nOK 0\n"
    assert session.rig.broker.topic("t").channel("c").consumer.floor == 2


def test_each_of_a_run_of_synced_acks_is_told_of_a_disk_that_fails(session: SessionRig) -> None:
    session.rig.publish("t", *[b"x"] * 3)
    session.rig.take(session.rig.subscribe("t"))
    session.rig.disk.fail("pwrite", 1, errno.EIO, sticky=True)
    session.apply(SettlementRun(Ack("t", "c", ((0, 0),), sync=True), [0, 1, 7]))
    assert [line.split()[:2] for line in session.write().splitlines()] == [[b"ERR", b"STORAGE_FAILED"]] * 3
    assert session.rig.broker.metrics.errors == {"STORAGE_FAILED": 3}
    assert session.replies.held_bytes == 0


@pytest.mark.parametrize("mode", ["single", "shared"])
@pytest.mark.parametrize(("command", "settles"), [
    (Ack("t", "c", ((0, 0),)), True), (SettlementRun(Ack("t", "c", ((0, 0),)), [0, 1]), True),
    (Nack("t", "c", ((0, 0),)), True), (Nack("t", "c", ((0, 0),), uncounted=True), False), (Touch("t", "c", ((0, 0),)), False),
    (SettlementRun(Touch("t", "c", ((0, 0),)), [0, 1]), False), (Ack("t", "d", ((0, 0),)), False),
])  # fmt: skip
def test_one_that_settles_something_too_late_does_not_hang(
    session: SessionRig, mode: Mode, command: Command, settles: bool
) -> None:
    """With mode=single the session may have its share again; a message that it settles late has gone to another session, and
    counts 0."""
    session.rig.publish("t", b"x")
    session.rig.subscribe("t", "d")
    session.apply(commands.Subscribe("t", "c", mode=mode))
    (own,) = session.deliveries.by_name.values()
    own.lessee.late = True
    session.apply(command)
    assert own.lessee.late == (not settles or mode != "single")


def test_hello_comes_first_and_names_the_version_it_speaks(session: SessionRig) -> None:
    session.apply(commands.Hello(1))
    session.apply(commands.Hello(1))
    assert session.write().splitlines()[1] == b"ERR BAD_ARGUMENT HELLO must be the first command of a connection"
    with SessionRig() as other:
        other.apply(commands.Hello(2))
        assert other.write().startswith(b"ERR BAD_VERSION 1 ")
        assert other.handler.ended, "it is fatal"


@pytest.mark.provokes_bugs
@pytest.mark.parametrize(("error", "code"), [(RuntimeError("bug"), b"INTERNAL"), (OSError(5, "EIO"), b"STORAGE_FAILED")])
def test_a_failure_is_the_reply_of_its_command_alone(
    session: SessionRig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, code: bytes
) -> None:
    def fails(name: str) -> None:
        raise error

    monkeypatch.setattr(session.rig.broker, "topic", fails)
    session.apply(Ack("t", "c", ((0, 0),)))
    session.apply(commands.Ping())
    first, second = session.write().splitlines()
    assert first.split()[:2] == [b"ERR", code]
    assert second == b"PONG"
    assert not session.handler.ended
    assert [record.name for record in caplog.records] == ["toymq_py.session"]


def test_nothing_behind_quit_is_applied(session: SessionRig) -> None:
    runs: list[list[Command]] = [[commands.Ping(), commands.Quit(), commands.Ping()], [commands.Ping()], []]

    class Parsed(Reader):
        def __init__(self) -> None:
            pass

        def next_run(self) -> list[Command]:
            return runs.pop(0)

    assert session.handler.step(Parsed(), session.rig.clock, session.rig.clock.monotonic() + 1) is False
    assert session.write() == b"PONG\nOK 0\n"


def subscribe_and_end(session: SessionRig, subscribed: str, ended: str) -> bytes:
    session.apply(commands.Subscribe(subscribed, "c"))
    session.apply(commands.Unsubscribe(ended, "c"))
    return session.write()


@pytest.mark.parametrize(
    ("subscribed", "ended"),
    [("orders", "orders#*"), ("orders#*", "orders"), ("orders.dlq", "orders#*.dlq"), ("orders#*.dlq", "orders.dlq")],
)
def test_a_subscription_to_all_partitions_ends_under_either_name(session: SessionRig, subscribed: str, ended: str) -> None:
    """Found: UNSUB of ``orders#*`` was NOT_SUBSCRIBED after SUB of ``orders``."""
    session.apply(commands.Create("orders", {"partitions": "3"}))
    session.write()
    first, second = subscribe_and_end(session, subscribed, ended).splitlines()
    assert (first.split()[0], second) == (b"OK", b"OK 0")
    assert session.deliveries.by_name == {}


@pytest.mark.parametrize(("subscribed", "ended"), [("orders", "orders#*"), ("orders#*", "orders"), ("orders", "orders#0")])
def test_a_plain_topic_has_one_name(session: SessionRig, subscribed: str, ended: str) -> None:
    assert b"\nERR NOT_SUBSCRIBED " in subscribe_and_end(session, subscribed, ended)
    assert list(session.deliveries.by_name) == [subscribed]


def test_each_command_for_a_partitioned_topic_is_applied_to_all_or_asks_for_one(session: SessionRig) -> None:
    """Commands with ids are refused with PARTITIONED. A new kind of command must be entered in TEXTS."""
    session.apply(commands.Create("jobs", {"partitions": "3"}))
    session.write()
    assert set(TEXTS) == kinds_with_a_topic()
    refused: set[type] = set()
    for kind, text in TEXTS.items():
        (command,) = parsed(text.format("jobs"))
        assert type(command) is kind
        session.apply(command)
        replies = session.write().splitlines()
        assert replies, kind
        if replies[0].startswith(b"ERR PARTITIONED "):
            refused.add(kind)
    assert refused == ONE_PARTITION
