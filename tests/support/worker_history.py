"""Checks what workers reported of their jobs (``killed_workers``) while they and their broker were killed.

Times are nanoseconds of the machine's monotonic clock, which all processes share.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True, slots=True, order=True)
class Said:
    at: int
    event: str
    """``begin``, ``end`` (it is done) or ``left`` (it raised or was cancelled); of a process ``online``, it is connected."""
    kind: str
    key: str
    number: int
    pid: int


@dataclass(slots=True)
class Kills:
    """Which processes were killed, and when the kill was sent."""

    broker: list[int] = field(default_factory=list)
    processes: dict[int, int] = field(default_factory=dict)
    """When, by process. A process that was killed is its parent's child for a moment more: its first kill counts, behind which
    it acks nothing."""

    def living(self, pids: Iterable[int]) -> list[int]:
        """Return the processes to which no kill was sent."""
        return [pid for pid in pids if pid not in self.processes]

    def any_between(self, first: int, last: int) -> bool:
        return self.broker_between(first, last) or any(first <= at <= last for at in self.processes.values())

    def broker_between(self, first: int, last: int) -> bool:
        return any(first <= at <= last for at in self.broker)


def read(folder: Path) -> list[Said]:
    """Read all reported lines, in the order of their times."""
    found = []
    for path in folder.glob("*.txt"):
        for line in path.read_text().splitlines():
            event, kind, key, number, at = line.split()
            found.append(Said(int(at), event, kind, key, int(number), int(path.stem)))
    return sorted(found)


def done(history: Iterable[Said]) -> set[tuple[str, int]]:
    return {(one.kind, one.number) for one in history if one.event == "end"}


def broken_rules(history: list[Said], kills: Kills) -> list[str]:
    """Return a sentence for each violation of a rule."""
    by_key: dict[tuple[str, str], list[Said]] = defaultdict(list)
    online: dict[int, list[int]] = defaultdict(list)
    for one in history:
        if one.event == "online":
            online[one.pid].append(one.at)
        else:
            by_key[one.kind, one.key].append(one)
    found = []
    for lines in by_key.values():
        found += [*_two_hands(lines, kills, online), *_out_of_order(lines), *_done_again(lines, kills, online)]
    return found


Online = Mapping[int, list[int]]
"""When each process was connected, ascending."""


def _connected(one: Said, online: Online) -> int:
    """Return when the process that reported a line was connected last: a lease that it has began after that. A busy process
    learns late that its connection is gone, and goes on with what it has."""
    return max((at for at in online.get(one.pid, ()) if at < one.at), default=one.at)


def _two_hands(lines: list[Said], kills: Kills, online: Online) -> Iterable[str]:
    """Check that no two processes run jobs of a key at once. These cases are allowed: a job whose lease ended with the broker
    runs on, and another process has the job. Or a job that was done, but whose ack was lost with the broker, is repeated, and
    meanwhile its first process acks it, so that the next job of the key begins. Or a job's child process ends a moment after
    its worker."""
    if lines[0].kind == "process":
        return
    running: dict[tuple[int, int], Said] = {}
    ended: set[int] = set()
    for one in lines:
        running = {place: begun for place, begun in running.items() if kills.processes.get(begun.pid, one.at) >= one.at}
        if one.event == "begin":
            for begun in running.values():
                if not kills.broker_between(_connected(begun, online), one.at):
                    yield f"{one} begins while {begun} runs"
            if one.number not in ended:
                running[one.pid, one.number] = one
        else:
            running.pop((one.pid, one.number), None)
            if one.event == "end":
                ended.add(one.number)


def _out_of_order(lines: list[Said]) -> Iterable[str]:
    """Check that a job of a key begins for the first time only when all earlier ones have been done."""
    first_begin: dict[int, int] = {}
    first_end: dict[int, int] = {}
    for one in lines:
        if one.event == "begin":
            first_begin.setdefault(one.number, one.at)
        elif one.event == "end":
            first_end.setdefault(one.number, one.at)
    for before, after in pairwise(sorted(first_begin)):
        if first_end.get(before, first_begin[after]) >= first_begin[after]:
            yield f"{lines[0].kind} {lines[0].key}: {after} begins before {before} has been done"


def _done_again(lines: list[Said], kills: Kills, online: Online) -> Iterable[str]:
    """Check that a job that was done is repeated only if a kill lost its ack, or its lease before that: a kill of the broker
    while the job ran, or since its process was connected last."""
    begun: dict[tuple[int, int], int] = {}
    ended: dict[int, Said] = {}
    slack_ns = PROCESS_NS if lines[0].kind == "process" else ACK_NS
    for one in lines:
        if one.event == "end":
            ended[one.number] = one
        elif one.event == "begin":
            if (done := ended.get(one.number)) is not None:
                leased = min(begun.get((done.pid, done.number), done.at), _connected(done, online), done.at - slack_ns)
                if not kills.broker_between(leased, one.at) and not kills.any_between(done.at - slack_ns, one.at):
                    yield f"{one} begins although it was done, and nothing was killed since"
            begun[one.pid, one.number] = one.at


ACK_NS = 200_000_000
"""Acks of so long before the kill of a broker may be lost, twice what it promises; measured on another process's clock."""
PROCESS_NS = 2_000_000_000
"""A process of a job ends behind its worker: on a busy machine it may end the job before."""
