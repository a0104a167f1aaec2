"""Partitioned topics on the command line: lists with one line for a topic, and publishing that tells the partition."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, islice
from random import randrange
from typing import Any

import toymq.sync
from toymq.arguments import Seconds, route_bytes
from toymq.arguments import topic as topic_name
from toymq.message import Item
from toymq.requests import partition_counts
from toymq_py.errors import RequestError
from toymq_py.group_key import GROUP
from toymq_py.names import PARTITION_MARK, partition_name, whole_name
from toymq_py.partitions import PARTITIONS, Partitioned, described_whole, number_of
from toymq_py.routes import Router

CHUNK = 1024
"""Messages that are dealt to partitions at a time."""


class Dealer:
    """Chooses a message's partition as the broker does, so that it can be printed: the reply to a PUB has only the id."""

    def __init__(self, topic: str, count: int) -> None:
        self._whole = Partitioned(topic, count)
        self._router = Router(randrange(count))

    def choose(self, key: str | None, route: str | None, headers: Mapping[str, str] | None) -> str:
        """Return the name of the partition for the next message. Raises: BadArgument, as the broker would for such a route."""
        group = (headers or {}).get(GROUP.decode())
        block = b"" if group is None else b"%b: %b\n" % (GROUP, group.encode(errors="surrogatepass"))
        keys = [(key or "").encode(errors="surrogatepass")]
        routes = [b"" if route is None else route_bytes(route)]
        (number,) = self._router.numbers(self._whole, keys, routes=routes, blocks=[block])
        return self._whole.names[number]

    def publish_many(
        self, client: toymq.sync.Client, items: Iterable[Item], headers: Mapping[str, str] | None, *,
        delay: Seconds | None, ttl: Seconds | None,
    ) -> Iterator[str]:  # fmt: skip
        """Publish all items; yield the partition of each, in the order of the items, when the message is on the disk.

        ``headers``: the headers that every item has. Raises: as ``pub_many``, in the place of the item that failed.
        """
        items = iter(items)
        while chunk := list(islice(items, CHUNK)):
            names = [self.choose(None, None, headers) for _ in chunk]
            dealt: dict[str, list[Item]] = {}
            for name, item in zip(names, chunk, strict=True):
                dealt.setdefault(name, []).append(item)
            sent = {name: iter(client.pub_many(name, some, delay=delay, ttl=ttl)) for name, some in dealt.items()}
            for name in names:
                next(sent[name])
                yield name


def dealer(client: toymq.sync.Client, topic: str) -> Dealer | None:
    """Make the dealer of a partitioned topic; None for another topic, and when the broker does not tell the number of
    partitions.

    The broker is not asked by DESCRIBE: for a token that may only publish, each publish would add a refusal to the audit trail.
    Raises: BadName.
    """
    if PARTITION_MARK in topic_name(topic):
        return None
    counts = None
    with suppress(RequestError):  # an older broker does not know it
        counts = client._ask(partition_counts())  # of one process, whatever others are away
    count = _described(client, topic) if counts is None else counts.get(topic)
    return Dealer(topic, count) if count else None


def _described(client: toymq.sync.Client, topic: str) -> int | None:
    """Ask an older broker for the number of partitions of a topic; it needs all its workers or groups for the answer."""
    try:
        return client.describe(topic).get(PARTITIONS) if client.topics(f"{topic}{PARTITION_MARK}*") else None
    except RequestError:
        return None


def parts_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the partitions of a described topic; of a topic without partitions a list of itself."""
    parts: list[dict[str, Any]] = found.get("parts", [found])
    return parts


def grouped(topics: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the partitions of each topic into one entry, ``orders#0-7``, in the place of the first; other topics stay as they
    are."""
    found: dict[tuple[str, bool], list[dict[str, Any]]] = {}
    for topic in topics:
        name = topic["topic"]
        found.setdefault((whole_name(name), number_of(name) is not None), []).append(topic)
    return [_one(whole, some) if is_divided else some[0] for (whole, is_divided), some in found.items()]


def _one(whole: str, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {**described_whole(whole, len(parts), parts), "topic": range_name(whole, parts)}


def range_name(whole: str, parts: Sequence[dict[str, Any]]) -> str:
    """Return a name for some partitions of a topic: ``orders#0-7``, ``orders#1,3-5.dlq``."""
    numbers = sorted(number for part in parts if (number := number_of(part["topic"])) is not None)
    runs = [[each for _, each in run] for _, run in groupby(enumerate(numbers), lambda one: one[1] - one[0])]
    shown = ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return partition_name(whole, shown)
