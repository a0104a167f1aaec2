"""The required followers grow before the in-sync set, and shrink after it."""

import asyncio

import pytest

from tests.support.link_rig import FakeChanges
from toymq_py.errors import TermEnded
from toymq_py.replication.required import RequiredFollowers
from toymq_py.replication.tickets import Tickets


async def test_a_follower_is_waited_for_until_etcd_has_no_value_with_it() -> None:
    tickets, changes = Tickets(), FakeChanges({"a", "b"})
    required = RequiredFollowers(tickets, changes, {"a", "b"})
    assert tickets.required == {"a", "b"}
    required.add("c")
    assert tickets.required == {"a", "b", "c"}
    changes.holds.clear()
    dropping = asyncio.ensure_future(required.drop("a"))
    await asyncio.sleep(0)
    assert tickets.required == {"a", "b", "c"}
    changes.holds.set()
    await dropping
    assert tickets.required == required.replicas == {"b", "c"}


async def test_a_follower_is_waited_for_when_the_term_has_ended() -> None:
    tickets, changes = Tickets(), FakeChanges({"a"})
    changes.term_ended = True
    required = RequiredFollowers(tickets, changes, {"a"})
    with pytest.raises(TermEnded):
        await required.drop("a")
    assert tickets.required == {"a"}


async def test_a_new_leader_learns_when_each_member_was_dropped_once() -> None:
    changes = FakeChanges({"a", "b"})
    required = RequiredFollowers(Tickets(), changes, {"a", "b"})
    waiting = asyncio.ensure_future(required.all_dropped())
    await required.drop("a")
    required.add("a")  # it has joined
    await asyncio.sleep(0)
    assert not waiting.done()
    await required.drop("b")
    await asyncio.wait_for(waiting, 1)
    await asyncio.wait_for(RequiredFollowers(Tickets(), changes, ()).all_dropped(), 1)
