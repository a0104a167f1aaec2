"""A change of a partitioned topic is begun only when all workers or groups that have to make it answer. ADR 0270."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.passing_rig import Groups, Rig, rig_of_groups
from toymq_py.errors import PlacementUnknown
from toymq_py.partitions import Partitioned
from toymq_py.session import upstream

CHANGES = {
    "PURGE t": "PURGE t", "CONFIG t ttl=5000": "CONFIG t", "SEEK t c latest": "SEEK t c", "FORGET t c": "FORGET t c",
    "REDRIVE t.dlq": "REDRIVE t.dlq", "CREATE t partitions=8": "CREATE t",
}  # fmt: skip
"""What is sent, and how it is named."""


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    """Yield a session of group a, which knows a topic over both groups; the test plays the leader of b."""
    async with rig_of_groups(tmp_path) as rig:
        rig.partitioned.by_name["t"] = Partitioned("t", 8)
        yield rig


@pytest.mark.parametrize("command", CHANGES)
async def test_nothing_is_done_at_any_group_while_one_has_no_leader(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Found: the change was made at the groups that answered, and the error did not mention that."""

    def check_led(self: Groups, why: str, words: str) -> None:
        raise PlacementUnknown(f"group b has no leader, and {why}: repeat {words}; nothing was done")

    monkeypatch.setattr(Groups, "check_led", check_led)
    assert rig.take(f"{command}\n")
    why = "would get no partition of t" if command.startswith("CREATE") else "would not do its part"
    refusal = f"group b has no leader, and {why}: repeat {CHANGES[command]}; nothing was done"
    await rig.client_reads(f"ERR PLACEMENT_UNKNOWN {refusal}\n")
    assert (rig.here_heard, rig.writers) == ([], [])


@pytest.mark.parametrize("command", CHANGES)
async def test_nothing_is_done_at_any_group_while_one_stands_still(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """There may be a connection to the group or not. Nothing is done later either, when it goes on."""
    rig.take("TOPICS\n")
    await rig.hears("TOPICS\n")
    before = rig.reader, rig.writer
    rig.says("JSON 2\n[]\n")
    await rig.client_reads("JSON 2\n[]\n")
    rig.here_heard.clear()
    monkeypatch.setattr(upstream, "REACH_S", 0.02)
    rig.greets = False
    rig.take(f"{command}\n")
    said = f"group b does not answer; nothing was done: repeat {CHANGES[command]}"
    await rig.client_reads(f"ERR PLACEMENT_UNKNOWN {said}\n")
    assert rig.here_heard == []
    rig.take("TOPICS\n")
    rig.reader, rig.writer = before
    await rig.hears("TOPICS\n")


@pytest.mark.parametrize("command", CHANGES)
async def test_a_group_that_is_lost_before_it_says_that_it_is_there_has_done_nothing(rig: Rig, command: str) -> None:
    rig.greets = False
    rig.take(f"{command}\n")
    await rig.hears("PING\n")
    rig.writer.close()
    said = f"group b does not answer; nothing was done: repeat {CHANGES[command]}"
    await rig.client_reads(f"ERR PLACEMENT_UNKNOWN {said}\n")
    assert rig.here_heard == []


async def two_connections(rig: Rig) -> None:
    async with asyncio.timeout(10):
        while len(rig.writers) < 2:  # noqa: ASYNC110 (those that the test plays)
            await asyncio.sleep(0.001)


async def purged(rig: Rig) -> None:
    """Ask group b for a PURGE, after an earlier connection has ended."""
    rig.take("PURGE t\n")
    assert rig.gate.closed
    await two_connections(rig)
    await rig.hears("PURGE t\n")
    assert rig.here_heard == ["PURGE t\n"]


async def test_a_group_that_is_lost_in_the_middle_leaves_it_done_in_part_and_that_is_said(rig: Rig) -> None:
    await purged(rig)
    rig.writer.close()
    said = "group b does not answer; part of it may be done: repeat PURGE t"
    await rig.client_reads(f"ERR PLACEMENT_UNKNOWN {said}\n")
    assert not rig.aborted.is_set(), "the client stays"


async def test_what_only_one_group_refuses_is_done_in_part_and_that_is_said(rig: Rig) -> None:
    await purged(rig)
    rig.says("ERR STORAGE_FAILED the disk is full\n")
    await rig.client_reads("ERR STORAGE_FAILED the disk is full; part of it may be done: repeat PURGE t\n")


async def test_what_all_can_do_is_done_once_and_what_follows_waits(rig: Rig) -> None:
    await purged(rig)
    rig.says("OK 7\n")
    await rig.client_reads("OK 7\n")
    assert (rig.here_heard, rig.gate.closed) == (["PURGE t\n"], False)


async def test_a_pull_that_waits_there_keeps_no_change_from_being_asked_for(rig: Rig) -> None:
    """Found: on the session's connection the answer would come behind that of the waiting PULL, so the group was taken to be
    down."""
    rig.take("TOPICS\n")
    await rig.hears("TOPICS\n")
    rig.take("PURGE t\n")
    before = rig.reader
    await two_connections(rig)
    rig.reader = before
    await rig.hears("PURGE t\n")


@pytest.mark.parametrize("command", ["CONFIG t", "DESCRIBE t"])
async def test_what_reads_is_asked_at_once(rig: Rig, command: str) -> None:
    rig.take(f"{command}\n")
    await rig.hears(f"{command}\n")


async def test_a_session_that_has_ended_changes_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.greets = False
    rig.take("PURGE t\n")
    await rig.hears("PING\n")
    monkeypatch.setattr(rig.passing.links, "closed", True)
    rig.says("PONG\n")
    assert await rig.reader.read() == b"", "the connection has ended"
    monkeypatch.undo()
    assert (rig.written, rig.here_heard, len(rig.writers)) == (b"", [], 1)
