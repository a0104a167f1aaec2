"""Partitioned topics of three groups on a simulated etcd, with the part of the leaders that makes and removes partitions."""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

from tests.support.elections import elect
from tests.support.sim_disk import SimDisk
from tests.support.sim_event_loop import run_simulated
from tests.support.simulated_etcd import SimulatedEtcd
from toymq_py.cluster.group_placement import GroupPlacement
from toymq_py.config.topic_settings import TopicSettings
from toymq_py.data_directory import DataDirectory
from toymq_py.errors import NameBusy, NoSuchTopic, PlacementUnknown, RequestError
from toymq_py.partitioned_topics import Done, PartitionedTopics
from toymq_py.placement import Place
from toymq_py.protocol import encode_error, encode_ok
from toymq_py.replication.kept_places import KeptPlaces
from toymq_py.session.gathering import NO_SUCH
from toymq_py.session.stages import Plan, Stages
from toymq_py.storage import topic_settings

CLUSTER = "c"
GROUPS = ("a", "b", "c")
LOST_S = 60.0
"""A leader that was killed does not answer; its clients are told by the end of the connection."""


class Soon:
    """A ``Scheduler`` that runs jobs a little later, on the loop."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def soon(self, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(call)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(delay_s, call)

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        def run() -> None:
            with suppress(OSError):  # the disk of a process that is dead
                job()
            done()

        asyncio.get_running_loop().call_later(self._rng.choice((0.0, 0.001, 0.05)), run)

    def run_here(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        job()
        done()


class Group:
    """A group: its disk, and its present leader. Topics are directories."""

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
        """Kill the leader and start another one."""
        world = self._world
        self.placement = None
        self.disk = disk = self.disk.kill()
        self.life += 1
        member, lease = await elect(world.etcd, self.name, self.life)
        kept = KeptPlaces(world.etcd.client(member.name), CLUSTER, self.name)
        placement = GroupPlacement(kept, self.name, member.replica, asyncio.get_running_loop(), _no_link)
        placement.is_here = lambda topic: disk is self.disk and topic in self.topics()
        await placement.open()
        directory = DataDirectory(disk, Soon(world.rng), "/data")
        partitioned = PartitionedTopics(disk, directory, lambda: placement, (), {})
        partitioned.open()
        partitioned.note_lost(list(self.topics()))
        await placement.settle(self.topics(), list(partitioned.by_name.values()))
        world.running.append(asyncio.get_running_loop().create_task(placement.run(lease)))
        self.placement, self.partitioned, self._directory = placement, partitioned, directory

    # -- as its broker

    def run(self, verb: str, name: str, count: int, answered: Callable[[bytes], None], group: str | None = None) -> None:
        placement = self.placement
        if placement is None:
            asyncio.get_running_loop().call_later(0.1, answered, encode_error(PlacementUnknown("no leader")))
            return

        def done(error: OSError | RequestError | None) -> None:
            if placement is not self.placement:
                answered(encode_error(PlacementUnknown("killed")))
            else:
                answered(encode_ok(0) if error is None else encode_error(_known(error)))

        try:
            if verb == "CREATE":
                settings = {"visibility": "60000"}
                has = self.topics().__contains__
                self.partitioned.create(name, str(count), settings, has, self._make, self._remove, done, group)
            elif name in self.partitioned.by_name:
                self.partitioned.delete(name, self._remove, done)
            else:
                raise NoSuchTopic(name)
        except NameBusy as busy:
            busy.when_done(lambda: self.run(verb, name, count, answered, group))
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

        asyncio.get_running_loop().call_later(self._world.rng.choice((0.0, 0.01)), make)

    def _remove(self, name: str, done: Done) -> None:
        life, placement = self.life, self.placement

        def remove() -> None:
            if life == self.life and placement is not None and placement is self.placement and name in self.topics():
                self._directory.remove_topic_now(name)
                placement.gone(name)
            done(None)

        asyncio.get_running_loop().call_later(self._world.rng.choice((0.0, 0.01)), remove)


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

    async def command(self, verb: str, at: str, name: str, count: int = 0, group: str | None = None) -> str:
        """Run a command as a session at the leader of a group does, which passes it on, and as a client does, which follows
        MOVED. Returns: OK, or the error's code."""
        for _ in range(8):
            placement = self.groups[at].placement
            if placement is None:
                return "PLACEMENT_UNKNOWN"
            home, places = [placement.place_of(name)], placement.places()
            others = [place for place in places if place not in home]
            stages = [home, places] if verb == "CREATE" else [home, others, home, others]
            try:
                async with asyncio.timeout(LOST_S):
                    answer = await self._in_stages(verb, name, count, stages, group)
            except TimeoutError:
                return "LOST"
            if not answer.startswith(b"ERR MOVED"):
                return answer.split()[answer.startswith(b"ERR")].decode()
            at = answer.decode().partition("(group ")[2].partition(")")[0]
        return "MOVED"

    async def _in_stages(
        self, verb: str, name: str, count: int, stages: Sequence[Sequence[Place]], group: str | None
    ) -> bytes:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

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
                run = self.groups[str(place)].run
                asyncio.get_running_loop().call_later(self.rng.choice((0.0, 0.01)), run, verb, name, count, add, group)

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
