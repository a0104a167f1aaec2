"""Placement of topics in groups, by the product's rule: ``python -m tests.model.placement`` prints the tables of docs/scale.md.

Contract: groups.md, stage 3. Pure, seeded. A group is a replicated broker. A topic's group is decided when the topic is made,
and kept in etcd; nothing moves by itself. The rule (``choose_group``): the groups in the order of their rendezvous hash, and of
them the first whose load is at most ``BOUND`` times the mean. Load is skewed as Zipf's law says: the n-th topic has 1/n of the
first.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

import click

from toymq.backoff import Backoff
from toymq_py.placement import choose_group, score

BALANCED = 1.2
"""To so many means of load an operator moves topics (``toymqctl cluster move``)."""
SHARE_OF_A_TOPIC = 0.25
"""A topic with more than this share of a group's mean load is made with partitions."""
KEEPALIVES_PER_S = 1.0
"""Of a leader: a third of a TTL of 3 s."""
TTL_S = 3.0
FAILOVER_WRITES = 4
"""Transactions of a failover: the lease ends, the election, the in-sync set without the dead replica, and with it again."""
SESSIONS_PER_S = 5000.0
"""That one process begins: 0.2 ms of its loop each (net/acceptor.py)."""
BACKOFF_S = 0.05, 5.0
"""Of the clients, least and most."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, or a partition of one."""

    name: str
    load: float


def topics_of(count: int, groups: int, rng: random.Random, *, partitions: bool) -> list[Topic]:
    """Return topics whose loads add up to ``groups``, in the order of their creation. With ``partitions`` a topic of much load
    is several partitions."""
    weights = [1 / (rank + 1) for rank in range(count)]
    scale = groups / sum(weights)
    found = []
    for rank, weight in enumerate(weights):
        load = weight * scale
        parts = max(1, -int(-load // SHARE_OF_A_TOPIC)) if partitions else 1
        found += [Topic(f"t{rank}#{part}" if parts > 1 else f"t{rank}", load / parts) for part in range(parts)]
    rng.shuffle(found)
    return found


@dataclass
class Cluster:
    """Groups with their topics, as etcd has them."""

    groups: dict[int, float] = field(default_factory=dict)
    """Load by group."""
    place: dict[str, int] = field(default_factory=dict)
    loads: dict[str, float] = field(default_factory=dict)
    moves: int = 0
    bounded: bool = True
    """False: the hash alone decides."""

    def add_group(self) -> int:
        number = max(self.groups, default=-1) + 1
        self.groups[number] = 0.0
        return number

    def mean(self) -> float:
        return sum(self.groups.values()) / len(self.groups)

    def choose(self, topic: str, load: float) -> int:
        """Return the group of a new topic."""
        if not self.bounded:
            return max(self.groups, key=lambda group: score(group, topic))
        return choose_group(topic, self.groups, load)

    def create(self, topic: Topic) -> int:
        group = self.choose(topic.name, topic.load)
        self.place[topic.name] = group
        self.loads[topic.name] = topic.load
        self.groups[group] += topic.load
        return group

    def move(self, topic: str, group: int) -> None:
        self.groups[self.place[topic]] -= self.loads[topic]
        self.groups[group] += self.loads[topic]
        self.place[topic] = group
        self.moves += 1

    def members(self) -> dict[int, list[str]]:
        """Return the topics by group, those with the most load first."""
        found: dict[int, list[str]] = {group: [] for group in self.groups}
        for topic in sorted(self.place, key=lambda topic: (-self.loads[topic], topic)):
            found[self.place[topic]].append(topic)
        return found

    def remove_group(self, group: int) -> None:
        """Move the topics of a group away, and remove it."""
        topics = self.members()[group]
        load = self.groups.pop(group)
        for topic in topics:
            target = self.choose(topic, self.loads[topic])
            self.place[topic] = target
            self.groups[target] += self.loads[topic]
            load -= self.loads[topic]
            self.moves += 1
        assert abs(load) < 1e-6

    def balance(self) -> None:
        """Move topics from the fullest group to the emptiest, the largest that fits, until none is above ``BALANCED``."""
        members = self.members()
        stuck: set[int] = set()
        while True:
            left = [group for group in self.groups if group not in stuck]
            if not left:
                return
            fullest = max(left, key=lambda group: self.groups[group])
            emptiest = min(self.groups, key=lambda group: self.groups[group])
            excess = self.groups[fullest] - self.mean()
            if self.groups[fullest] <= BALANCED * self.mean():
                return
            room = min(excess, self.mean() - self.groups[emptiest])
            fitting = next((topic for topic in members[fullest] if self.loads[topic] <= room), None)
            if fitting is None:
                stuck.add(fullest)  # one topic alone is too much
                continue
            self.move(fitting, emptiest)
            members[fullest].remove(fitting)
            members[emptiest].append(fitting)
            members[emptiest].sort(key=lambda topic: (-self.loads[topic], topic))

    def imbalance(self) -> float:
        """Return the load of the fullest group, in multiples of the mean."""
        return max(self.groups.values()) / self.mean()


def filled(count: int, groups: int, seed: int, *, bounded: bool, partitions: bool) -> Cluster:
    cluster = Cluster(bounded=bounded)
    for _ in range(groups):
        cluster.add_group()
    for topic in topics_of(count, groups, random.Random(seed), partitions=partitions):
        cluster.create(topic)
    return cluster


@dataclass(frozen=True, slots=True)
class Failover:
    """What happens when the leaders of some groups die at once."""

    groups: int
    topics: int
    """Of all topics, those that pause. None moves."""
    load: float
    """Share of the load that pauses."""
    clients: int
    """Clients that lose a connection."""
    peak_per_s: int
    """Most attempts to connect to one of the new leaders within a second."""
    last_s: float
    """When the last client is served again, after the death."""
    etcd_writes: int


def fail_over(cluster: Cluster, dead: int, clients: int, topics_each: int, seed: int) -> Failover:
    """Simulate the death of some leaders. Each client uses some topics, and has a connection to the group of each. The clients
    of a dead leader reconnect with their back-off from its death on; they are served after the end of the lease, as many a
    second as a process can accept."""
    rng = random.Random(seed)
    gone = sorted(rng.sample(sorted(cluster.groups), dead))
    names, weights = list(cluster.loads), list(accumulate(cluster.loads.values()))
    attempts: dict[tuple[int, int], int] = {}
    arrivals: dict[int, list[float]] = {group: [] for group in gone}
    hit = 0
    for _ in range(clients):
        used = {cluster.place[topic] for topic in rng.choices(names, cum_weights=weights, k=topics_each)}
        lost = sorted(used & set(gone))
        hit += bool(lost)
        for group in lost:
            for at_s in _attempts(rng):
                attempts[group, int(at_s)] = attempts.get((group, int(at_s)), 0) + 1
            arrivals[group].append(at_s)
    last_s = 0.0
    for times in arrivals.values():
        free_s = 0.0
        for at_s in sorted(times):
            free_s = max(free_s, at_s) + 1 / SESSIONS_PER_S
        last_s = max(last_s, free_s)
    paused = [topic for topic, group in cluster.place.items() if group in gone]
    return Failover(
        dead, len(paused), sum(cluster.groups[group] for group in gone) / sum(cluster.groups.values()), hit,
        max(attempts.values(), default=0), last_s, dead * FAILOVER_WRITES,
    )  # fmt: skip


def _attempts(rng: random.Random) -> Iterator[float]:
    """Yield the times at which a client tries to connect, up to the first that a leader answers."""
    backoff, at_s = Backoff(*BACKOFF_S, rng), 0.0
    while True:
        at_s += backoff.next_s()
        yield at_s
        if at_s >= TTL_S:
            return


def rows(count: int, groups: int, seed: int) -> Iterator[str]:
    """Yield the table of balance and moves."""
    yield f"| {groups} groups, {count:,} topics | fullest group, in means | topics moved |"
    yield "|---|---|---|"
    by_hash = filled(count, groups, seed, bounded=False, partitions=False)
    yield f"| hash alone | {by_hash.imbalance():.2f} | 0 |"
    by_load = filled(count, groups, seed, bounded=True, partitions=False)
    yield f"| hash with a bound on load | {by_load.imbalance():.2f} | 0 |"
    cluster = filled(count, groups, seed, bounded=True, partitions=True)
    yield f"| the same, hot topics in partitions | {cluster.imbalance():.2f} | 0 |"
    new = max(groups // 10, 1)
    for _ in range(new):
        cluster.add_group()
    yield f"| {new} groups come | {cluster.imbalance():.2f} | {cluster.moves} |"
    cluster.balance()
    yield f"| an operator balances | {cluster.imbalance():.2f} | {cluster.moves:,} |"
    cluster.moves = 0
    for group in list(cluster.groups)[: max(groups // 20, 1)]:
        cluster.remove_group(group)
    yield f"| {max(groups // 20, 1)} groups go | {cluster.imbalance():.2f} | {cluster.moves:,} |"
    cluster.moves = 0
    cluster.balance()
    yield f"| an operator balances | {cluster.imbalance():.2f} | {cluster.moves:,} |"


def failovers(count: int, groups: int, clients: int, seed: int) -> Iterator[str]:
    """Yield the table of a failover of 5 % of the groups."""
    cluster = filled(count, groups, seed, bounded=True, partitions=True)
    yield f"| {max(groups // 20, 1)} of {groups} leaders die, {clients:,} clients | 1 topic each | 5 topics each |"
    yield "|---|---|---|"
    one, five = (fail_over(cluster, max(groups // 20, 1), clients, each, seed) for each in (1, 5))
    yield f"| topics that pause, and move | {one.topics:,}, none | {five.topics:,}, none |"
    yield f"| load that pauses | {one.load:.1%} | {five.load:.1%} |"
    yield f"| clients that lose a connection | {one.clients:,} | {five.clients:,} |"
    yield f"| attempts to connect to one leader, most in a second | {one.peak_per_s:,} | {five.peak_per_s:,} |"
    yield f"| the last client is served after | {one.last_s:.1f} s | {five.last_s:.1f} s |"
    yield f"| etcd: transactions of the failover | {one.etcd_writes} | {five.etcd_writes} |"
    yield f"| etcd: keepalives a second, at all times | {groups * KEEPALIVES_PER_S:.0f} | {groups * KEEPALIVES_PER_S:.0f} |"


@click.command()
@click.option("--topics", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--groups", type=click.IntRange(2), default=100, show_default=True)
@click.option("--clients", type=click.IntRange(1), default=1_000_000, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
def main(topics: int, groups: int, clients: int, seed: int) -> None:
    """Place topics in groups, and print the results for balance, moves, clients and etcd."""
    for line in (*rows(topics, groups, seed), "", *failovers(topics, groups, clients, seed)):
        click.echo(line)


if __name__ == "__main__":
    main()
