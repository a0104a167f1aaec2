"""A command for which places are asked in stages: a refusal is the reply, and later stages are not asked."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from toymq_py.errors import NoSuchTopic, RequestError, ShuttingDown
from toymq_py.partitioned_topics import PartitionedTopics
from toymq_py.placement import Place, Placement
from toymq_py.protocol import Config, Create, Delete, Describe, Purge, commands
from toymq_py.session.gathering import NO_SUCH, NOT_HERE
from toymq_py.session.stages import Plan, Stages, is_change, plan_of, to_repeat, undone, words_of

Reply = bytes | RequestError


STAGES: Sequence[Sequence[Place]] = (["a"], [], ["b", "c"], ["a"])


def asked(
    *replies: Reply, lacks: tuple[bytes, ...] = (), missing: RequestError | None = None
) -> tuple[list[Sequence[Place]], Reply]:
    """Return which places were asked, and the reply, when each stage has answered so."""
    left, found, told = list(replies), list[Sequence[Place]](), list[Reply]()

    def ask(places: Sequence[Place], answered: Callable[[bytes], None]) -> None:
        found.append(places)
        reply = left.pop(0)
        if isinstance(reply, RequestError):
            raise reply
        answered(reply)

    Stages(Plan(STAGES, lacks), ask, told.append, missing).begin()
    (reply,) = told
    return found, reply


def test_a_refusal_for_want_of_a_place_says_that_a_repeat_completes_it() -> None:
    """Found: the command left partitions behind, and the error did not say what to do."""
    away = b"ERR PLACEMENT_UNKNOWN group b does not answer"
    assert to_repeat(Create("t", {}), away + b"\n") == away + b"; part of it may be done: repeat CREATE t\n"
    assert to_repeat(Delete("t"), away + b"\n") == away + b"; part of it may be done: repeat DELETE t\n"
    for reply in (b"OK 2\n", b"ERR EXISTS t\n", b"ERR PLACEMENT_UNKNOWN t is being deleted: repeat DELETE t first\n"):
        assert to_repeat(Create("t", {}), reply) == reply


def test_a_refusal_before_anything_is_asked_says_that_nothing_was_done() -> None:
    """Found: the error was the same for a command that was done in part and for one that was not done at all."""
    away = b"ERR PLACEMENT_UNKNOWN group b does not answer, so its topics are not known: try again\n"
    nothing = b"ERR PLACEMENT_UNKNOWN group b does not answer; nothing was done: repeat PURGE t\n"
    assert undone(Purge("t"), away) == undone(Purge("t"), nothing) == nothing
    assert undone(Purge("t"), b"ERR AUTH_FAILED x\n") == b"ERR AUTH_FAILED x\n"


def test_a_refusal_of_one_where_another_has_done_it_says_that_it_is_done_in_part() -> None:
    full = b"ERR STORAGE_FAILED the disk is full\n"
    assert to_repeat(Purge("t"), full) == full
    assert to_repeat(Purge("t"), full, begun=True) == full[:-1] + b"; part of it may be done: repeat PURGE t\n"
    half = b"ERR PLACEMENT_UNKNOWN t is being made; if that was interrupted, repeat the CREATE or DELETE of it\n"
    assert to_repeat(Purge("t"), half) == half[:-1] + b"; part of it may be done\n"
    assert words_of(commands.Forget("t", "c")) == "FORGET t c"


def test_what_reads_changes_nothing() -> None:
    assert [is_change(one) for one in (Config("t"), Describe("t"), Config("t", {"ttl": "1"}), Purge("t"))] == [
        False, False, True, True,
    ]  # fmt: skip


class Groups(Placement):
    def places(self) -> Sequence[Place]:
        return ["a", "b"]

    def place_of(self, topic: str) -> Place:
        return "a"


@pytest.mark.parametrize(
    ("settings", "known", "home"), [({}, False, "a"), ({"group": "b"}, False, "b"), ({"group": "b"}, True, "a"),
                                    ({"group": "none"}, False, "a")],
)  # fmt: skip
def test_the_group_that_is_to_have_a_new_topic_is_asked_first(settings: dict[str, str], known: bool, home: str) -> None:
    """That group writes the record, and answers MOVED if another group has the topic."""
    partitioned = SimpleNamespace(by_name={"t": None} if known else {})
    create = Create("t", {"partitions": "2", **settings})
    plan = plan_of(create, Groups(), cast(PartitionedTopics, partitioned), follows=True)
    assert plan == Plan([[home], ["a", "b"]])


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
        ((b"ERR NO_SUCH_TOPIC x\n", b"ERR NO_SUCH_TOPIC y\n", b"ERR NO_SUCH_TOPIC z\n"), b"ERR NO_SUCH_TOPIC x\n"),
    ],
)
def test_what_is_gone_in_some_places_is_deleted(replies: Sequence[Reply], reply: bytes) -> None:
    assert asked(*replies, lacks=NO_SUCH)[1] == reply


def test_a_place_that_says_why_is_told_before_one_that_names_another() -> None:
    moved, why = b"ERR MOVED a:1 (worker 0) has the topic x\n", b"ERR NO_SUCH_TOPIC x\n"
    assert asked(moved, why, moved, lacks=NOT_HERE)[1] == why
    assert asked(moved, moved, moved, lacks=NOT_HERE)[1] == moved


def test_where_each_worker_lacks_it_the_first_or_this_one_says_why() -> None:
    moved = b"ERR MOVED a:1 (worker 0) has the topic x\n"
    replies = b"ERR NO_SUCH_TOPIC x\n", moved, moved
    assert asked(*replies, lacks=NOT_HERE)[1] == replies[0]
    error = NoSuchTopic("there is no topic x")
    assert asked(*replies, lacks=NOT_HERE, missing=error)[1] is error
    assert asked(replies[0], b"OK 7\n", replies[1], lacks=NOT_HERE, missing=error)[1] == b"OK 7\n"
    assert asked(replies[0], replies[1], lacks=NO_SUCH)[1] == replies[1], "a group names another one"
