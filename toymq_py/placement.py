"""Placement of topics: the worker that has a topic, and the group that gets a new one, by rendezvous hashing of its name.

Contract: groups.md, stages 2 and 3; ADR 0128, 0188. Pure. After a change of ``score`` workers would not find stored topics, so
tests pin its values.
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Protocol, TypeVar

from toymq_py.errors import BadArgument, Moved, PlacementUnknown, RequestError
from toymq_py.heartbeat import standstill
from toymq_py.names import DEAD_LETTERS, is_pattern
from toymq_py.partitions import Partitioned

REACH_S = 20.0
"""How long a worker may take to answer: longer than the replacement of a worker takes after a back-off of 5 s, and less than
the 30 s after which a call of a client gives up."""

T = TypeVar("T")
Place = int | str
"""The number of a worker, or the name of a group."""
P = TypeVar("P", int, str)

BOUND = 1.25
"""Most load of a group that gets a new topic, as a multiple of the mean."""


def named(place: Place) -> str:
    """The name of a place for texts, such as ``worker 1``."""
    return f"worker {place}" if isinstance(place, int) else f"group {place}"


def score(place: Place, topic: str) -> bytes:
    """A place's score for a topic: the place with the highest score has the topic. A dead-letter topic is placed with its
    origin."""
    return blake2b(f"{place}/{topic.removesuffix(DEAD_LETTERS)}".encode(), digest_size=8).digest()


def worker_of(topic: str, workers: int) -> int:
    """The number of a topic's worker, below ``workers``."""
    return max(range(workers), key=lambda worker: score(worker, topic))


def choose_group(topic: str, loads: Mapping[P, float], load: float = 0.0) -> P:
    """The group for a new topic: the hash chooses among those with room; if none has room, the least loaded.

    Args:
        loads: the load of each group; at least one group.
        load: the load of the topic, if known.
    """
    limit = BOUND * (sum(loads.values()) + load) / len(loads)
    fits = [group for group, has in loads.items() if has + load <= limit]
    if not fits:
        return min(loads, key=lambda group: (loads[group], group))
    return max(fits, key=lambda group: score(group, topic))


def spread(partitions: Sequence[str], counts: Mapping[P, int]) -> dict[str, P]:
    """The group for each new partition: the hash chooses among the groups that have the fewest partitions of the topic.

    Args:
        counts: how many partitions of the topic each group has already; at least one group.
    """
    has = dict(counts)
    places = {}
    for name in partitions:
        fewest = min(has.values())
        places[name] = place = max((group for group in has if has[group] == fewest), key=lambda group: score(group, name))
        has[place] += 1
    return places


class PlaceLink(Protocol):
    """A session's connection to another place (a worker or group): commands are sent as bytes, replies come back as frames."""

    finishing: bool
    reached: bool
    """Whether the other end has answered. While it has not, no request that was sent was carried out there, nor will be."""
    on_reached: Callable[[], None]
    """Called when the other end has answered; it does nothing until it is set."""
    refusal: str
    """Why the other end refuses the connection; "" while it has not said so."""

    def send(self, pieces: Sequence[bytes]) -> None:
        """Send some bytes, now or as soon as the other end reads."""

    def finish(self) -> None:
        """End the sending of commands: the other end ends its waits, sends its answers, and closes."""

    def pause(self) -> None:
        """Stop reading until ``resume``, since the client does not read."""

    def resume(self) -> None: ...

    def close(self) -> None:
        """Close at once. Idempotent."""


class PartitionTable(Protocol):
    """The partitioned topics of a cluster with groups, on which the leaders agree. ``GroupPartitions`` implements it."""

    on_change: Callable[[str, Partitioned | None, bool], None]
    """Called with a name, its partitioned topic (None: there is none), and whether that is being deleted, when this has
    changed."""
    is_complete: bool
    """Whether this is all; if not, the partitioned topics that the directory knows besides count, too."""

    def known(self) -> Mapping[str, tuple[Partitioned, bool]]:
        """The partitioned topics known now, each with whether it is being deleted."""

    def make(
        self, wanted: Partitioned, group: str | None, done: Callable[[Partitioned | RequestError], None]
    ) -> None:
        """Agree on a new topic and the groups of its partitions, or learn of an existing topic; ``done`` gets the topic that is
        agreed on. ``group``: the group for all partitions; None: all groups."""

    def begin_delete(self, name: str, done: Callable[[Partitioned | RequestError], None]) -> None:
        """Record that a topic is being deleted. ``done`` gets the topic, whose partitions here have to be removed."""

    def end_delete(self, topic: Partitioned, done: Callable[[RequestError | None], None]) -> None:
        """Record that the topic's partitions here are removed. If no other group has one, the topic does not exist any more."""


class Placement:
    """The places of a broker's topics, as one worker knows them. Without ``addresses`` there is only this process.
    Immutable."""

    def __init__(
        self, worker: int = 0, addresses: Sequence[str] = (), sockets: Sequence[str] = (), http_sockets: Sequence[str] = (),
        changes: memoryview | list[int] | None = None, pids: memoryview | list[int] | None = None,
        stands_still: Callable[[int], bool] = lambda worker: False,
    ) -> None:  # fmt: skip
        """
        Args:
            addresses: for each worker its ``host:port``, followed by its other addresses.
            sockets: for each worker the path of the Unix socket on which other workers reach it.
            http_sockets: the same for HTTP.
            changes: shared memory with a number for each worker (``change_of``); None: changes are not reported.
            pids: shared memory with the process id of each worker; 0 while it has none.
            stands_still: ``Heartbeats.stands_still``.
        """
        self.worker = worker
        self.addresses = addresses
        self.sockets = sockets
        self.http_sockets = http_sockets
        self._changes = changes
        self._pids = pids
        self._stands_still = stands_still

    @property
    def is_divided(self) -> bool:
        """Whether other workers or groups may have topics."""
        return bool(self.addresses)

    @property
    def passes_on(self) -> bool:
        """Whether commands for topics of other places are passed on for clients that do not follow MOVED."""
        return True

    @property
    def table(self) -> PartitionTable | None:
        """The table of partitioned topics on which groups agree; None: each process keeps its own."""
        return None

    @property
    def here(self) -> Place:
        """The place that this process is: its worker's number or its group."""
        return self.worker

    @property
    def part(self) -> str | None:
        """What this process is, such as ``worker 1 of 4``, for reports about it alone; None if it is the whole broker."""
        return f"worker {self.worker} of {len(self.addresses)}" if self.addresses else None

    def places(self) -> Sequence[Place]:
        """All places, in order."""
        return range(len(self.addresses))

    def place_of(self, topic: str) -> Place:
        """The place of a topic, if known; otherwise this place."""
        return self.worker_of(topic)

    def has(self, partition: str) -> bool:
        """Whether a partition is placed here."""
        return self.worker_of(partition) == self.worker

    def connected(
        self, place: Place, received: Callable[[list[bytes]], None], lost: Callable[[], None], *, trusted: bool = False
    ) -> PlaceLink | None:
        """Open a session's connection to another place; None: the caller makes one to the path in ``sockets``
        (``session.upstream``).

        ``trusted``: with all rights, for a connection to another group.
        """
        return None

    def worker_of(self, topic: str) -> int:
        """The number of the broker's worker that has a topic."""
        return worker_of(topic, len(self.addresses)) if self.addresses else self.worker

    def moved(self, topic: str) -> RequestError | None:
        """The error for a topic of another place: Moved, or PlacementUnknown while that place cannot be reached; None for a
        topic that is here."""
        if not self.addresses:
            return None
        worker = self.worker_of(topic)
        if worker == self.worker:
            return None
        text = f"{self.addresses[worker]} (worker {worker}) has the topic {topic}"
        if not (problem := self.problem_of(worker)):
            return Moved(text)
        error = PlacementUnknown(f"worker {worker} has the topic {topic}, and {problem}")
        error.moved = Moved(f"{text}, and {problem}")
        return error

    def again(self, topic: str) -> RequestError:
        """The error for a publish that must be repeated, to keep the order after others that went elsewhere: MOVED to this
        place."""
        return Moved(f"{self.addresses[self.worker] if self.addresses else '-'} (worker {self.worker}) has the topic {topic}")

    def admit(self, topic: str, group: str | None = None) -> None:
        """Check that a topic that does not exist here may be made here. ``group``: the requested group.

        Raises: Moved, BeingPlaced, PlacementUnknown, TopicExists; BadArgument for an unknown group.
        """
        if group is not None:
            raise BadArgument(f"group={group}: this broker is of no group; groups are those of a cluster (docs/clusters.md)")
        if (error := self.moved(topic)) is not None:
            raise error

    def is_here_by_record(self, topic: str, cluster: str) -> bool | None:
        """Whether this group has a topic whose move was interrupted, by its record in etcd; None when etcd does not answer.
        ``cluster``: the UUID in the topic's mark."""
        return None

    def problem_of(self, place: Place) -> str:
        """Why a place does not answer, if known; "" otherwise."""
        if not isinstance(place, int) or place == self.worker or not self._stands_still(place):
            return ""
        return standstill(pid) if (pid := self.pid_of(place)) is not None else ""  # else it is just being replaced

    def check_led(self, why: str, words: str) -> None:
        """Refuse a change of all groups that would only be made in part. ADR 0270.

        Args:
            why: what a group without a leader would miss, for the error.
            words: the command to repeat, for the error.

        Raises: PlacementUnknown: a group is known to have no leader.
        """

    def pid_of(self, place: Place) -> int | None:
        """The process id of a worker; None when it has no process now, or that is unknown."""
        return None if self._pids is None or not isinstance(place, int) else self._pids[place] or None

    def gone(self, topic: str) -> None:
        """Note that a topic does not exist any more, or was not made."""

    def check(self, topic: str) -> None:
        """Check that a topic is here. Raises: Moved when another worker has it. Patterns pass, as each worker may have
        topics."""
        if not is_pattern(topic) and (error := self.moved(topic)) is not None:
            raise error

    def change_of(self, worker: int) -> int | None:
        """A number that changes whenever a worker has changed its partitioned topics on the disk; None during a change, or if
        changes are not reported."""
        change = None if self._changes is None else self._changes[worker]
        return None if change is None or change % 2 else change

    def changing(self, over: bool) -> None:
        """Note that this worker begins a change of its partitioned topics on the disk, or has ended it (``over``). If the
        worker is killed meanwhile, its successor ends the change."""
        if self._changes is not None and self._changes[self.worker] % 2 == over:
            self._changes[self.worker] += 1

    def others(self) -> list[int]:
        """The numbers of the other workers."""
        return [worker for worker in range(len(self.addresses)) if worker != self.worker]

    def in_order(self, ours: T, of_others: Sequence[T]) -> list[T]:
        """Values of the other workers and this worker's own, in the order of the workers."""
        return [*of_others[: self.worker], ours, *of_others[self.worker :]]

    def described(self, sees: Callable[[str], bool] | None) -> dict[str, Any]:
        """The JSON of CLUSTER. ``sees``: whether the client may see a topic; None: topics are left out."""
        found = {"worker": self.worker, "workers": [addresses.split() for addresses in self.addresses]}
        return found if self._pids is None else {**found, "pids": list(self._pids)}
