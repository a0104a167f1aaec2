"""Partitioned topics over groups: whole or not there, or completed by a repeat, whatever etcd, leaders and commands do."""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import pytest

from tests.support.elections import elect
from tests.support.shares import seeds
from tests.support.sim_disk import SimDisk
from tests.support.sim_event_loop import run_simulated
from tests.support.simulated_etcd import Loss, SimulatedEtcd
from toymq_py.cluster.group_placement import GroupPlacement
from toymq_py.config.options import TopicSettings
from toymq_py.data_directory import DataDirectory
from toymq_py.errors import BeingDeleted, NameBusy, NoSuchTopic, PlacementUnknown, RequestError, StorageFailed, TermEnded
from toymq_py.partitioned_topics import Done, PartitionedTopics
from toymq_py.placement import Place
from toymq_py.protocol import encode_error, encode_ok
from toymq_py.replication.kept_places import KeptPlaces
from toymq_py.session.gathering import NO_SUCH
from toymq_py.session.stages import Plan, Stages
from toymq_py.storage import topic_settings

CLUSTER = "c"
GROUPS = ("a", "b", "c")
TOPICS = ("x", "y")
COUNTS = (2, 5)
LOST_S = 60.0
"""A leader that was killed does not answer; its clients are told by the end of the connection."""


class Soon:
    """A ``Scheduler`` whose jobs run a little later, on the loop."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def soon(self, call: Callable[[], None]) -> None:
        _loop().call_soon(call)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        _loop().call_later(delay_s, call)

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        def run() -> None:
            with suppress(OSError):  # the disk of a process that is dead
                job()
            done()

        _loop().call_later(self._rng.choice((0.0, 0.001, 0.05)), run)

    def run_here(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        job()
        done()


class Group:
    """A group: its disk, and the leader of this moment. Topics are directories."""

    def __init__(self, world: "World", name: str) -> None:
        self.name = name
        self.disk = SimDisk(random.Random(1))
        self.disk.mkdir("/data/topics")
        self.placement: GroupPlacement | None = None
        self.partitioned: PartitionedTopics
        self.life = 0
        self._world = world

    def topics(self) -> set[str]:
        return {name for name in self.disk.listdir("/data/topics") if not name.startswith(".")}

    async def lead(self) -> None:
        """The leader is killed, and there is another one."""
        world = self._world
        self.placement = None
        self.disk = disk = self.disk.kill()
        self.life += 1
        member, lease = await elect(world.etcd, self.name, self.life)
        kept = KeptPlaces(world.etcd.client(member.name), CLUSTER, self.name)
        placement = GroupPlacement(kept, self.name, member.replica, _loop(), _no_link)
        placement.is_here = lambda topic: disk is self.disk and topic in self.topics()
        await placement.open()
        directory = DataDirectory(disk, Soon(world.rng), "/data")
        partitioned = PartitionedTopics(disk, directory, lambda: placement, (), {})
        partitioned.open()
        partitioned.note_lost(list(self.topics()))
        await placement.settle(self.topics(), list(partitioned.by_name.values()))
        world.running.append(_loop().create_task(placement.run(lease)))
        self.placement, self.partitioned, self._directory = placement, partitioned, directory

    # -- as its broker

    def run(self, verb: str, name: str, count: int, answered: Callable[[bytes], None]) -> None:
        placement = self.placement
        if placement is None:
            _loop().call_later(0.1, answered, encode_error(PlacementUnknown("no leader")))
            return

        def done(error: OSError | RequestError | None) -> None:
            if placement is not self.placement:
                answered(encode_error(PlacementUnknown("killed")))
            else:
                answered(encode_ok(0) if error is None else encode_error(_known(error)))

        try:
            if verb == "CREATE":
                settings = {"visibility": "60000"}
                self.partitioned.create(name, str(count), settings, self.topics().__contains__, self._make, self._remove, done)
            elif name in self.partitioned.by_name:
                self.partitioned.delete(name, self._remove, done)
            else:
                raise NoSuchTopic(name)
        except NameBusy as busy:
            busy.when_done(lambda: self.run(verb, name, count, answered))
        except RequestError as error:
            done(error)

    def _make(self, name: str, settings: Mapping[str, str], done: Done) -> None:
        life, placement = self.life, self.placement
        assert placement is not None
        if (error := self.partitioned.is_none(name)) is not None:
            raise error
        if name not in self.topics():
            placement.admit(name)

        def make() -> None:
            if life == self.life and placement is self.placement:
                if name not in self.topics():
                    stored = TopicSettings().changed(settings)
                    topic_settings.store(self.disk, f"/data/topics/{name}", stored, secrets.token_hex(8))
                self._world.check(name)
            done(None)

        _loop().call_later(self._world.rng.choice((0.0, 0.01)), make)

    def _remove(self, name: str, done: Done) -> None:
        life, placement = self.life, self.placement

        def remove() -> None:
            if life == self.life and placement is not None and placement is self.placement and name in self.topics():
                self._directory.remove_topic_now(name)
                placement.gone(name)
            done(None)

        _loop().call_later(self._world.rng.choice((0.0, 0.01)), remove)


def _known(error: OSError | RequestError) -> RequestError:
    assert isinstance(error, RequestError), error
    return error


def _no_link(*_: object) -> None:
    raise AssertionError("no session lists here")


class World:
    """Three groups, and commands at any of their leaders."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.etcd = SimulatedEtcd(rng)
        self.groups = {name: Group(self, name) for name in GROUPS}
        self.running: list[asyncio.Task[None]] = []

    def check(self, name: str) -> None:
        there = [group.name for group in self.groups.values() if name in group.topics()]
        assert len(there) <= 1, f"{name} is in {there}"

    async def command(self, verb: str, at: str, name: str, count: int = 0) -> str:
        """As a session at the leader of a group passes it on, and a client that follows MOVED. Returns: OK, or the code."""
        for _ in range(8):
            placement = self.groups[at].placement
            if placement is None:
                return "PLACEMENT_UNKNOWN"
            home, places = [placement.place_of(name)], placement.places()
            others = [place for place in places if place not in home]
            stages = [home, places] if verb == "CREATE" else [home, others, home, others]
            try:
                async with asyncio.timeout(LOST_S):
                    answer = await self._in_stages(verb, name, count, stages)
            except TimeoutError:
                return "LOST"
            if not answer.startswith(b"ERR MOVED"):
                return answer.split()[answer.startswith(b"ERR")].decode()
            at = answer.decode().partition("(group ")[2].partition(")")[0]
        return "MOVED"

    async def _in_stages(self, verb: str, name: str, count: int, stages: Sequence[Sequence[Place]]) -> bytes:
        answer: asyncio.Future[bytes] = _loop().create_future()

        def ask(places: Sequence[Place], answered: Callable[[bytes], None]) -> None:
            replies: list[bytes] = []

            def add(reply: bytes) -> None:
                replies.append(reply)
                if len(replies) == len(places):
                    errors = [each for each in replies if each.startswith(b"ERR")]
                    lacking = [each for each in errors if each.startswith(b"ERR NO_SUCH_") and verb == "DELETE"]
                    graves = [each for each in errors if each not in lacking or len(lacking) == len(places)]
                    answered(graves[0] if graves else encode_ok(0))

            for place in places:
                _loop().call_later(self.rng.choice((0.0, 0.01)), self.groups[str(place)].run, verb, name, count, add)

        def done(reply: bytes | RequestError) -> None:
            if answer.done():
                return
            answer.set_result(encode_error(reply) if isinstance(reply, RequestError) else reply)

        Stages(Plan(stages, NO_SUCH if verb == "DELETE" else ()), ask, done).begin()
        return await answer

    def names(self, topic: str, count: int) -> set[str]:
        return {f"{topic}#{number}" for number in range(count)}

    def stored(self, topic: str) -> list[str]:
        return sorted(name for group in self.groups.values() for name in group.topics() if name.startswith(f"{topic}#"))

    def records(self, topic: str) -> list[str]:
        return [key for key in self.etcd.keys() if key.rpartition("/topics/")[2].partition("#")[0] == topic]  # noqa: SIM118


def simulate(scenario: Callable[[World], Awaitable[None]], seed: int = 1) -> None:
    async def begin() -> None:
        world = World(random.Random(seed))
        for group in world.groups.values():
            await group.lead()
        await asyncio.sleep(1.0)  # they know each other
        await scenario(world)

    run_simulated(begin, seed)


async def whole(world: World, topic: str) -> None:
    """CREATE, DELETE and CREATE complete whatever is there."""
    for verb, count in (("CREATE", 3), ("DELETE", 0), ("CREATE", 4)):
        for attempt in range(20):
            at = GROUPS[attempt % len(GROUPS)]
            answer = await world.command(verb, at, topic, count)
            assert answer != "LOST"
            if answer == "OK" or (verb == "DELETE" and answer == "NO_SUCH_TOPIC"):
                break
            if verb == "CREATE" and answer in ("EXISTS", "PLACEMENT_UNKNOWN"):  # of another number, or going
                await world.command("DELETE", at, topic)
            await asyncio.sleep(0.2)
        else:
            raise AssertionError((verb, topic, answer))
        if verb == "DELETE":
            await asyncio.sleep(5.0)
            assert (world.stored(topic), world.records(topic)) == ([], [])
            assert not any(topic in group.partitioned.by_name for group in world.groups.values())
        else:
            assert set(world.stored(topic)) == world.names(topic, count)
            assert len(world.stored(topic)) == count, "each in one group"
            for group in world.groups.values():
                assert group.placement is not None
                assert group.partitioned.by_name[topic].count == count
                assert group.partitioned.find(topic) is not None
                for name in world.names(topic, count):
                    assert name in world.groups[str(group.placement.place_of(name))].topics()


async def troubled(world: World, rng: random.Random) -> None:
    """Clients create and delete at all groups, while etcd and leaders fail."""
    etcd = world.etcd

    async def client() -> None:
        for _ in range(12):
            await asyncio.sleep(rng.choice((0.0, 0.01, 0.2)))
            verb = rng.choice(("CREATE", "CREATE", "DELETE"))
            answer = await world.command(verb, rng.choice(GROUPS), rng.choice(TOPICS), rng.choice(COUNTS))
            assert answer in ("OK", "EXISTS", "NO_SUCH_TOPIC", "PLACEMENT_UNKNOWN", "MOVED", "LOST"), answer

    async def nemesis() -> None:
        for _ in range(10):
            await asyncio.sleep(rng.choice((0.01, 0.1, 0.5)))
            group = world.groups[rng.choice(GROUPS)]
            node = f"{group.name}{group.life}"
            harm = rng.choice(("lose", "lose", "cut", "lead", "lead", "lag", "away"))
            if harm == "lose":
                etcd.lose(node, *(rng.choice(list(Loss)) for _ in range(3)))
            elif harm == "cut":
                etcd.cut_off(node)
                _loop().call_later(rng.uniform(0, 2), etcd.reconnect, node)
            elif harm == "lead":
                etcd.away = False
                with suppress(TermEnded):
                    await group.lead()
            elif harm == "lag":
                etcd.watch_lag_s = rng.choice((0.0, 0.1, 1.0))
            else:
                etcd.away = not etcd.away

    await asyncio.gather(client(), client(), client(), nemesis())
    etcd.be_well()
    await asyncio.sleep(20.0)
    for group in world.groups.values():
        await group.lead()
    await asyncio.sleep(5.0)
    for topic in TOPICS:
        await whole(world, topic)


@pytest.mark.parametrize("seed", seeds(10, 30))
def test_a_repeat_completes_what_was_interrupted(seed: int) -> None:
    simulate(lambda world: troubled(world, random.Random(seed)), seed)


@pytest.mark.parametrize("verb", ["CREATE", "DELETE"])
@pytest.mark.parametrize("victim", ["a", "b"])
def test_a_leader_is_killed_at_each_step(verb: str, victim: str) -> None:
    """The command is at a, the home; the victim dies when so many transactions have reached etcd."""
    nth = 0
    while True:
        nth += 1
        killed = False

        async def scenario(world: World, nth: int = nth) -> None:
            nonlocal killed
            if verb == "DELETE":
                assert await world.command("CREATE", "a", "x", 6) == "OK"
            seen = 0
            over = asyncio.Event()

            def count(client: str, transaction: object, done: bool) -> None:
                nonlocal seen
                seen += done
                if seen == nth:
                    over.set()

            world.etcd.on_transaction = count
            async with asyncio.TaskGroup() as tasks:
                command = tasks.create_task(world.command(verb, "a", "x", 6))
                waits = tasks.create_task(over.wait())
                await asyncio.wait([command, waits], return_when=asyncio.FIRST_COMPLETED)
                if over.is_set() and not command.done():
                    killed = True
                    await world.groups[victim].lead()
                waits.cancel()
            answers = []
            for _ in range(20):
                answers.append(await world.command(verb, "c", "x", 6))
                if answers[-1] in ("OK", "NO_SUCH_TOPIC"):
                    break
                await asyncio.sleep(0.2)
            expected = sorted(world.names("x", 6)) if verb == "CREATE" else []
            assert world.stored("x") == expected, (nth, answers)
            await whole_again(world)

        async def whole_again(world: World) -> None:
            await asyncio.sleep(2.0)
            await world.command("DELETE", "b", "x")
            await whole(world, "x")

        simulate(scenario, nth)
        if not killed:
            break
    assert nth > 2, "nothing was tried"


def test_partitions_are_spread_and_known_everywhere_at_the_ok() -> None:
    async def scenario(world: World) -> None:
        world.etcd.watch_lag_s = 5.0
        assert await world.command("CREATE", "b", "x", 6) == "OK"
        assert [len(group.topics()) for group in world.groups.values()] == [2, 2, 2]
        for group in world.groups.values():
            assert group.partitioned.by_name["x"].count == 6
        assert await world.command("CREATE", "c", "x", 6) == "OK"
        assert await world.command("CREATE", "a", "x", 5) == "EXISTS"
        assert await world.command("DELETE", "a", "x") == "OK"
        assert await world.command("CREATE", "c", "x", 9) == "OK", "whatever the watch says still"
        for group in world.groups.values():
            assert group.partitioned.by_name["x"].count == 9
        assert len(world.stored("x")) == 9

    simulate(scenario)


def test_what_is_not_made_yet_is_refused() -> None:
    async def scenario(world: World) -> None:
        placement = world.groups["a"].placement
        assert placement is not None
        with pytest.raises(PlacementUnknown, match="partition x#1 is not made yet: CREATE or DELETE x again"):
            placement.admit("x#1")
        assert await world.command("CREATE", "a", "x", 2) == "OK"
        with pytest.raises(PlacementUnknown, match="x is partitioned, and is just being made or deleted"):
            placement.admit("x")
        world.groups["a"].run("DELETE", "x", 0, lambda reply: None)
        with pytest.raises(BeingDeleted, match="x is being deleted"):
            world.groups["a"].partitioned.find("x")
        await asyncio.sleep(2.0)
        for group in world.groups.values():
            with pytest.raises(PlacementUnknown, match="x is being deleted, and that was interrupted: repeat DELETE x"):
                group.partitioned.find("x")
        assert await world.command("CREATE", "b", "x", 2) == "PLACEMENT_UNKNOWN"
        assert await world.command("DELETE", "b", "x") == "OK"

    simulate(scenario)


def test_a_plain_topic_stays() -> None:
    async def scenario(world: World) -> None:
        group = world.groups["b"]
        assert group.placement is not None
        with suppress(NameBusy):
            group.placement.admit("x", "b")
        await asyncio.sleep(1.0)
        group.disk.mkdir("/data/topics/x")
        assert await world.command("CREATE", "a", "x", 2) == "EXISTS"
        group.disk.rmdir("/data/topics/x")  # its record was written, and its leader killed before it made the topic
        assert await world.command("CREATE", "a", "x", 2) == "OK"
        assert len(world.stored("x")) == 2

    simulate(scenario)


def test_etcd_that_has_forgotten_all_is_told_again() -> None:
    async def scenario(world: World) -> None:
        assert await world.command("CREATE", "a", "x", 5) == "OK"
        before = {group.name: group.topics() for group in world.groups.values()}
        world.etcd.wipe()
        for group in world.groups.values():
            await group.lead()
        await asyncio.sleep(1.0)
        assert {group.name: group.topics() for group in world.groups.values()} == before
        assert await world.command("CREATE", "b", "x", 5) == "OK"
        assert {group.name: group.topics() for group in world.groups.values()} == before
        await whole(world, "y")
        assert await world.command("DELETE", "c", "x") == "OK"
        assert world.stored("x") == []

    simulate(scenario)


def test_groups_whose_table_is_lost_as_well_refuse_the_topic_until_a_create() -> None:
    async def scenario(world: World) -> None:
        assert await world.command("CREATE", "a", "x", 6) == "OK"
        before = {group.name: group.topics() for group in world.groups.values()}
        world.etcd.wipe()
        for group in world.groups.values():
            group.disk.unlink("/data/partitions.json")
            await group.lead()
        await asyncio.sleep(1.0)
        for group in world.groups.values():
            with pytest.raises(StorageFailed, match="CREATE x partitions=N brings it back"):
                group.partitioned.is_whole("x")
        assert await world.command("CREATE", "b", "x", 2) == "EXISTS", "it has partitions with larger numbers"
        assert await world.command("CREATE", "b", "x", 6) == "OK"
        assert {group.name: group.topics() for group in world.groups.values()} == before
        assert not any(group.partitioned.lost for group in world.groups.values())
        assert await world.command("DELETE", "c", "x") == "OK"
        assert world.stored("x") == []

    simulate(scenario)


def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
