"""Commands that the broker itself sends to all groups: one answer, or the reason why there is none."""

import asyncio
import json
from collections.abc import Callable, Sequence

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py.clock import SystemClock
from toymq_py.errors import AuthFailed, NoSuchTopic, PlacementUnknown
from toymq_py.placement import PartitionTable, Place, Placement
from toymq_py.session import Errands

TOPICS = {"a": [{"topic": "x"}], "b": [{"topic": "y"}]}


class Link:
    """A connection to a group that answers each command by a table."""

    finishing = False
    reached = False
    on_reached = staticmethod(lambda: None)
    refusal = ""

    def __init__(self, answers: dict[bytes, bytes], received: Callable[[list[bytes]], None], lost: Callable[[], None]) -> None:
        self._answers, self._received, self._lost = answers, received, lost
        self.said: list[bytes] = []
        self.closed = False

    def send(self, pieces: Sequence[bytes]) -> None:
        self.said += pieces
        for piece in pieces:
            answer = self._answers.get(piece.split()[0])
            asyncio.get_running_loop().call_soon(self._answer, answer)

    def _answer(self, answer: bytes | None) -> None:
        if answer is not None:
            self._received([answer])
        else:
            self.closed = True
            self._lost()

    def finish(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def close(self) -> None:
        self.closed = True


class Groups(Placement):
    """Two groups; those in ``away`` do not answer."""

    is_divided, passes_on = True, False
    here: Place = "a"

    def __init__(self) -> None:
        super().__init__()
        self.away: str | None = None
        self.links: list[Link] = []
        self.refusals: dict[bytes, bytes] = {}

    @property
    def table(self) -> PartitionTable | None:
        return None

    def places(self) -> list[Place]:
        return ["a", "b"]

    def place_of(self, topic: str) -> Place:
        return "b"

    def connected(
        self, place: Place, received: Callable[[list[bytes]], None], lost: Callable[[], None], *, trusted: bool = False
    ) -> Link:
        assert trusted
        listed = json.dumps(TOPICS[str(place)]).encode()
        answers = {
            b"TOPICS": b"JSON %d\n%b\n" % (len(listed), listed), b"CREATE": b"OK 0\n", **self.refusals,
        }  # fmt: skip
        self.links.append(link := Link({} if place == self.away else answers, received, lost))
        asyncio.get_running_loop().call_soon(lambda: link.on_reached())
        return link


async def rig_of() -> tuple[Groups, Errands]:
    rig, groups = BrokerRig(), Groups()
    rig.broker.placement = groups
    return groups, Errands(rig.broker, SystemClock(), asyncio.get_running_loop())


async def test_lists_are_those_of_all_groups_and_the_connections_end() -> None:
    groups, errands = await rig_of()
    assert await errands.topics(None) == [{"topic": "x"}, {"topic": "y"}]
    assert [link.said for link in groups.links] == [[b"TOPICS\n"], [b"TOPICS\n"]]
    assert all(link.closed for link in groups.links)


async def test_a_group_that_is_away_is_said() -> None:
    groups, errands = await rig_of()
    groups.away = "b"
    with pytest.raises(PlacementUnknown, match="group b does not answer, so its topics are not known"):
        await errands.topics(None)
    assert all(link.closed for link in groups.links)


async def test_what_a_group_refuses_is_raised() -> None:
    groups, errands = await rig_of()
    await errands.create("x", {"partitions": "2"})
    groups.refusals = {b"CREATE": b"ERR NO_SUCH_TOPIC there is none\n"}
    with pytest.raises(NoSuchTopic, match="there is none"):
        await errands.create("x", {"partitions": "2"})


async def test_what_is_not_of_all_groups_is_not_asked() -> None:
    _, errands = await rig_of()
    with pytest.raises(PlacementUnknown, match="is just being made or deleted"):
        await errands.purge("x")


async def test_the_figures_of_one_group_are_asked_of_it_alone() -> None:
    groups, errands = await rig_of()
    figures = b'{"publish_total": 3, "topics": [{"topic": "y"}]}'
    groups.refusals = {b"STATS": b"JSON %d\n%b\n" % (len(figures), figures)}
    assert await errands.stats_of("b") == ({"publish_total": 3}, [{"topic": "y"}])
    groups.refusals = {b"STATS": b"ERR AUTH_FAILED it is another token\n"}
    with pytest.raises(AuthFailed, match="another token"):
        await errands.stats_of("b")
    groups.away = "b"
    with pytest.raises(PlacementUnknown, match=r"^group b does not answer$"):
        await errands.stats_of("b")
    assert len(groups.links) == 3
    assert all(link.closed for link in groups.links)
