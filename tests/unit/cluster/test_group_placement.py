"""Which group has which topic: never two, whatever etcd does with requests, answers and watch events."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

import pytest

from tests.support.elections import CLUSTER, elect
from tests.support.fake_place_link import FakePlaceLink
from tests.support.shares import seeds as some
from tests.support.sim_event_loop import run_simulated
from tests.support.simulated_etcd import SimulatedEtcd
from tests.support.troubled_groups import settle, trouble_groups
from toymq_py.cluster.group_placement import GroupPlacement
from toymq_py.cluster.group_views import AWAY_S
from toymq_py.errors import BadArgument, BeingMoved, EtcdError, Moved, NameBusy, PlacementUnknown, TermEnded, TopicExists
from toymq_py.replication.agreement import ClusterSettings
from toymq_py.replication.kept_agreement import KeptAgreement
from toymq_py.replication.kept_places import KeptPlaces

TOPICS = [f"t{number}" for number in range(4)]
GROUPS = ("a", "b")


class Refused(Exception):
    """A command got an error that asks to repeat it later."""


class Lost(AssertionError):
    """Two groups accepted publishes for one topic."""


class Group:
    """A group whose leader is replaced at times: what is stored stays, and an old leader acknowledges nothing."""

    def __init__(self, world: "World", name: str) -> None:
        self.name = name
        self.topics: set[str] = set()
        self.placement: GroupPlacement | None = None
        self.life = 0
        self._world = world

    async def lead(self) -> None:
        """Elect a new leader, while the one before does not know yet."""
        self.placement, etcd = None, self._world.etcd
        self.life += 1
        member, lease = await elect(etcd, self.name, self.life)
        node = member.name
        kept = KeptPlaces(etcd.client(node), CLUSTER, self.name)
        placement = GroupPlacement(kept, self.name, member.replica, asyncio.get_running_loop(), self._world.link)
        placement.is_here = lambda topic: topic in self.topics
        await placement.open()
        await placement.settle(self.topics)
        self._world.running.append(asyncio.get_running_loop().create_task(placement.run(lease)))
        self.placement = placement


def _no_link(*_: object) -> None:
    raise AssertionError("no session lists here")


class World:
    """Two groups, and clients that follow MOVED."""

    def __init__(self, etcd: SimulatedEtcd) -> None:
        self.etcd = etcd
        self.groups = {name: Group(self, name) for name in GROUPS}
        self.running: list[asyncio.Task[None]] = []

    async def publish(self, at: str, topic: str, wanted: str | None = None) -> str:
        """Publish as a client whose first command goes to the group ``at``. Returns: the group that took it. Raises: Refused,
        Lost."""
        for _ in range(12):
            group = self.groups[at]
            placement = group.placement
            if placement is None:
                raise Refused("no leader")
            try:
                if topic not in group.topics:
                    placement.admit(topic, wanted)
            except NameBusy as busy:
                await _waited(busy)
                continue
            except PlacementUnknown as error:
                raise Refused(str(error)) from error
            except Moved as moved:
                at = str(moved).partition("(group ")[2].partition(")")[0]
                continue
            if placement is not self.groups[at].placement:
                raise Refused("it leads no longer: no copy acknowledges")
            group.topics.add(topic)
            others = [name for name, other in self.groups.items() if topic in other.topics and name != at]
            if others:
                raise Lost(f"{topic} is in {at} and in {others}")
            return at
        raise Refused("in circles")

    def link(self, group: str, trusted: object, leader: object, received: object, lost: Callable[[], None]) -> FakePlaceLink:
        """Return a link to a group, which is reached only if the group has a leader."""
        return FakePlaceLink(lost, reached=self.groups[group].placement is not None)

    def delete(self, topic: str) -> None:
        for group in self.groups.values():
            if topic in group.topics and group.placement is not None:
                group.topics.remove(topic)
                group.placement.gone(topic)


async def _waited(busy: NameBusy) -> None:
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    busy.when_done(lambda: over.done() or over.set_result(None))
    await over


def simulate(scenario: Callable[[World], Awaitable[None]], seed: int = 1) -> None:
    async def begin() -> None:
        world = World(SimulatedEtcd(random.Random(seed)))
        for group in world.groups.values():
            await group.lead()
        await asyncio.sleep(1.0)  # they know each other
        await scenario(world)

    run_simulated(begin, seed)


async def troubled(world: World, rng: random.Random) -> None:
    """Let clients publish and delete at both groups, while etcd and leaders fail."""

    async def client() -> None:
        for _ in range(60):
            await asyncio.sleep(rng.choice((0.0, 0.001, 0.01, 0.2)))
            topic = rng.choice(TOPICS)
            if rng.random() < 0.3:
                world.delete(topic)
                continue
            with suppress(Refused, TopicExists):
                await world.publish(rng.choice(GROUPS), topic, rng.choice((None, None, *GROUPS)))

    harms = ("lose", "lose", "cut", "lead", "lag", "away")
    await asyncio.gather(client(), client(), client(), trouble_groups(world.groups, world.etcd, rng, harms, 12))
    await settle(world.groups, world.etcd)
    for topic in TOPICS:  # all is well: each topic can be used, wherever it is asked for, and is where it was
        there = {name for name, group in world.groups.items() if topic in group.topics}
        found = {await world.publish(at, topic) for at in GROUPS}
        assert len(found) == 1, (topic, found)
        assert not there or found == there, (topic, found, there)


def trouble(seed: int) -> None:
    simulate(lambda world: troubled(world, random.Random(seed)), seed)


@pytest.mark.parametrize("seed", some(15, 40))
def test_a_topic_is_in_one_group_whatever_fails(seed: int) -> None:
    trouble(seed)


def test_a_book_that_believes_the_watch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above must fail without this rule: the watch's news about a group's own records may be out of date."""

    def believe(self: GroupPlacement, topics: Iterable[str]) -> None:
        for topic in topics:
            if (record := self._picture.records.get(topic)) is not None and record.group == self.group:
                self._own[topic] = record.revision

    monkeypatch.setattr(GroupPlacement, "_drop_own", believe)
    _some_seed_finds(range(27, 200))


def test_a_removal_that_is_not_waited_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above must fail without this rule, too: until etcd has answered, no topic is created anew whose record is being
    removed."""

    async def release(self: GroupPlacement, topic: str, revision: int) -> None:
        with suppress(EtcdError):
            await self._kept.release(topic, revision, self.epoch)
        self._own.pop(topic, None)

    def gone(self: GroupPlacement, topic: str) -> None:
        if topic in self._own:
            self._tasks.add(_loop().create_task(release(self, topic, self._own[topic])))

    monkeypatch.setattr(GroupPlacement, "gone", gone)
    _some_seed_finds(range(10, 200))


def _some_seed_finds(seeds: Iterable[int]) -> None:
    for seed in seeds:
        try:
            trouble(seed)
        except (Lost, AssertionError):
            return
    raise AssertionError("no seed has found it")


def test_the_group_that_is_asked_for_has_it_or_it_is_refused() -> None:
    async def scenario(world: World) -> None:
        assert await world.publish("a", "t", "b") == "b"
        assert await world.publish("b", "t", "b") == "b"
        assert await world.publish("a", "t.dlq") == "b"
        a, b = (group.placement for group in world.groups.values())
        assert a is not None
        assert b is not None
        with pytest.raises(TopicExists, match="t is in group b, not in a"):
            a.admit("t", "a")
        with pytest.raises(BadArgument, match="there is no group c; there are a, b"):
            a.admit("t", "c")
        with pytest.raises(Moved, match=r"\(group b\) is to have the topic t$"):  # it may not be there yet
            a.admit("t", "b")
        moved = a.moved("t.dlq")
        assert str(moved) == "b1:1 toymqs://b1:1 http://b1:3/ (group b) has the topic t.dlq"
        assert (b.moved("t"), a.moved("new")) == (None, None)
        assert (a.here, a.place_of("t"), a.place_of("new"), list(a.places())) == ("a", "b", "a", ["a", "b"])
        assert b.described(lambda topic: True)["topics"] == {"t": "b"}
        assert b.described(lambda topic: topic != "t")["topics"] == {}
        assert "topics" not in a.described(None)
        assert a.rows()["group_topics"] == {("a",): 0.0, ("b",): 1.0}

    simulate(scenario)


def test_where_a_topic_is_that_was_being_moved_says_its_record() -> None:
    async def scenario(world: World) -> None:
        a = world.groups["a"].placement
        assert a is not None
        a.cluster = "u"
        assert await world.publish("a", "here", "a") == "a"
        assert await world.publish("a", "there", "b") == "b"
        assert [a.is_here_by_record(topic, "u") for topic in ("here", "there", "none")] == [True, False, False]
        assert [a.is_here_by_record(topic, "old") for topic in ("here", "there", "none")] == [True, False, None]

    simulate(scenario)


def test_what_is_for_a_topic_that_is_held_waits() -> None:
    async def scenario(world: World) -> None:
        a = world.groups["a"].placement
        assert a is not None
        assert await world.publish("a", "t", "a") == "a"
        revision = a.revision("t")
        assert revision is not None
        assert a.held.hold("t")
        assert not a.held.hold("t")
        assert a.revision("t") is None
        for waits in (lambda: a.moved("t.dlq"), lambda: a.admit("t")):
            with pytest.raises(NameBusy):
                _raised(waits)
        world.etcd.away = True
        asking = _loop().create_task(a.held.give("t", revision, "b", 1, 1))
        told: list[str] = []
        busy = a.moved("t")
        assert isinstance(busy, BeingMoved)
        busy.when_done(lambda: told.append("again"))
        while not told:  # noqa: ASYNC110 (another task)
            await asyncio.sleep(0.01)
        assert isinstance(a.moved("t"), PlacementUnknown), "etcd does not answer"
        world.etcd.away = False
        assert not await asking
        a.held.let_go("t")
        assert a.moved("t") is None
        assert a.revision("t") == revision

    simulate(scenario)


def _raised(call: Callable[[], Exception | None]) -> None:
    if (error := call()) is not None:
        raise error


def test_a_topic_goes_to_the_group_with_less_to_do() -> None:
    async def scenario(world: World) -> None:
        names = [f"new{number}" for number in range(20)]
        by_hash = {await world.publish("a", name) for name in names}
        assert by_hash == {"a", "b"}
        done = 0

        def busy() -> int:
            nonlocal done
            done += 100_000
            return done

        assert world.groups["a"].placement is not None
        world.groups["a"].placement.done = busy
        await asyncio.sleep(30.0)
        assert {await world.publish("a", f"later{number}") for number in range(20)} == {"b"}

    simulate(scenario)


async def depose(world: World, group: str) -> None:
    agreement = world.etcd.agreement("tool", CLUSTER, group)
    leader = (await agreement.read()).leader
    assert leader is not None
    await agreement.revoke(leader.lease)


def test_a_group_without_a_leader_gets_no_new_topic() -> None:
    async def scenario(world: World) -> None:
        await depose(world, "b")
        await asyncio.sleep(1.0)
        assert {await world.publish("a", f"new{number}") for number in range(20)} == {"a"}

    simulate(scenario)


def test_a_group_without_a_leader_is_named_until_it_has_one() -> None:
    async def scenario(world: World) -> None:
        assert await world.publish("b", "mine", "b") == "b"
        await asyncio.sleep(0.2)
        a = world.groups["a"].placement
        assert a is not None
        assert isinstance(a.moved("mine"), Moved)
        await depose(world, "b")
        await asyncio.sleep(1.0)
        assert (type(a.moved("mine")), a.problem_of("b")) == (Moved, ""), "it may be a failover"
        await asyncio.sleep(AWAY_S)
        assert isinstance(a.moved("mine"), PlacementUnknown)
        assert a.problem_of("b").startswith("has had no leader for 5 s")
        await world.groups["b"].lead()
        await asyncio.sleep(1.0)
        assert (type(a.moved("mine")), a.problem_of("b")) == (Moved, "")

    simulate(scenario)


def test_nothing_is_placed_in_a_named_group_whose_leader_is_gone_and_not_yet_away() -> None:
    """Found: the client was redirected to an address that was gone, and etcd had the name of a topic that did not exist."""

    async def scenario(world: World) -> None:
        world.groups["b"].placement = None  # it holds its lease still
        with pytest.raises(Refused, match=r"^new was not made: group b does not answer$"):
            await world.publish("a", "new", "b")
        assert not [key for key in world.etcd.keys() if "/topics/" in key]  # noqa: SIM118 (a method)
        await asyncio.sleep(1.0)
        assert await world.publish("a", "new", "a") == "a", "its name is free"
        await world.groups["b"].lead()
        assert await world.publish("a", "other", "b") == "b"

    simulate(scenario)


def test_what_is_gone_may_go_elsewhere() -> None:
    async def scenario(world: World) -> None:
        for wanted in ("a", "b", "a"):
            assert await world.publish("a", "t", wanted) == wanted
            await asyncio.sleep(1.0)
            world.delete("t")
            await asyncio.sleep(1.0)
        assert not [key for key in world.etcd.keys() if "/topics/" in key]  # noqa: SIM118 (a method)

    simulate(scenario)


def test_without_etcd_what_is_known_goes_on() -> None:
    async def scenario(world: World) -> None:
        assert await world.publish("a", "here", "a") == "a"
        assert await world.publish("a", "there", "b") == "b"
        world.etcd.away = True
        await asyncio.sleep(10.0)
        assert await world.publish("b", "here") == "a"
        assert await world.publish("a", "there") == "b"
        with pytest.raises(Refused, match="etcd does not say which group has new"):
            await world.publish("a", "new")
        world.delete("here")
        with pytest.raises(Refused, match="etcd does not say whether here has left"):
            await world.publish("a", "here")
        world.etcd.away = False
        await asyncio.sleep(10.0)
        await world.publish("a", "new")
        await world.publish("a", "here")

    simulate(scenario)


def test_without_etcd_many_are_refused_as_soon_as_one() -> None:
    async def scenario(world: World) -> None:
        for number in range(100):
            await world.publish("a", f"old{number}", "a")
        world.etcd.away = True
        for number in range(100):
            world.delete(f"old{number}")
        began = _loop().time()
        outcomes = await asyncio.gather(*(world.publish("a", f"new{n}") for n in range(500)), return_exceptions=True)
        assert all(isinstance(each, Refused) for each in outcomes)
        assert _loop().time() - began < 5.0, "neither behind each other, nor behind what is being removed"

    simulate(scenario)


def test_a_leader_that_gets_no_answer_gives_up() -> None:
    async def scenario(world: World) -> None:
        late = GroupPlacement(KeptPlaces(world.etcd.client("late"), CLUSTER, "a"), "a", "f" * 32, _loop(), _no_link)
        world.etcd.away = True
        with pytest.raises(TermEnded, match="etcd does not say which topics are whose"):
            await late.open()

    simulate(scenario)


def test_topics_that_are_stored_get_records_and_those_of_others_are_left() -> None:
    async def scenario(world: World) -> None:
        a = world.groups["a"]
        assert await world.publish("b", "both", "b") == "b"
        a.topics = {"both", "old.dlq", *(f"old{number}" for number in range(250))}
        await a.lead()
        assert a.placement is not None
        assert str(a.placement.moved("both")).startswith("b1:1 ")
        assert await world.publish("b", "old7") == "a"
        records = [key for key, value in world.etcd.keys().items() if "/topics/" in key and b'"a"' in value]
        assert len(records) == 251

    simulate(scenario)


def test_no_topic_is_placed_while_a_group_may_have_it() -> None:
    """A group that was created but never served with --group may have topics without records."""

    async def scenario(world: World) -> None:
        old: KeptAgreement = world.etcd.agreement("old", CLUSTER, "g0")
        await old.create_settings(ClusterSettings("u", 1, 1))
        await elect(world.etcd, "g0", 1)  # of a node without --group
        await asyncio.sleep(1.0)
        for wanted in (None, "a", "b"):
            with pytest.raises(Refused, match="group g0 has not been served with --group yet, and may have new"):
                await world.publish("a", "new", wanted)
        assert world.groups["a"].placement is not None
        assert list(world.groups["a"].placement.places()) == ["a", "b"], "lists do not wait for it"
        world.groups["g0"] = Group(world, "g0")
        await world.groups["g0"].lead()
        await asyncio.sleep(1.0)
        await world.publish("a", "new")

    simulate(scenario)


def test_a_group_that_no_node_has_led_stops_no_new_topic() -> None:
    """Found: after `toymqctl cluster --group c init` no new topic could be created until c had a leader."""

    async def scenario(world: World) -> None:
        await world.etcd.agreement("tool", CLUSTER, "c").create_settings(ClusterSettings("u", 1, 1))
        await asyncio.sleep(1.0)
        for number in range(20):
            assert await world.publish("a", f"new{number}") in ("a", "b")
        with pytest.raises(Refused, match="group c has had no leader yet, and takes no topic before: start its nodes"):
            await world.publish("a", "new", "c")
        world.groups["c"] = Group(world, "c")
        await world.groups["c"].lead()
        await asyncio.sleep(1.0)
        assert await world.publish("a", "new", "c") == "c"

    simulate(scenario)


def test_a_node_that_was_replaced_does_not_open() -> None:
    async def scenario(world: World) -> None:
        late = GroupPlacement(KeptPlaces(world.etcd.client("late"), CLUSTER, "a"), "a", "f" * 32, _loop(), _no_link)
        with pytest.raises(TermEnded, match="etcd has another leader of group a"):
            await late.open()

    simulate(scenario)


def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
