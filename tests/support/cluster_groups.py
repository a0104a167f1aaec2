"""Groups of a cluster, each a ``ClusterRig`` on the same etcd, and questions to their nodes."""

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import toymq
from tests.support.cluster_rig import MONOTONIC, WAIT_S, ClusterRig, running_groups
from tests.support.tokens import token
from toymq.errors import PlacementUnknown

Groups = dict[str, ClusterRig]


@contextlib.contextmanager
def two_groups(root: Path, *options: str) -> Iterator[Groups]:
    """Start groups a and b with one node each, and wait until they serve."""
    with running_groups(root, {"a": ("a1",), "b": ("b1",)}, *options) as rigs:
        serving(rigs)
        yield rigs


def serving(rigs: Groups) -> None:
    """Wait until each group has a leader, and the first node of each group knows all leaders."""
    for rig in rigs.values():
        asyncio.run(rig.leader())
    until = MONOTONIC() + WAIT_S
    for rig in rigs.values():
        while len(rig.nodes) == 1 and not _knows(rig, len(rigs)):
            assert MONOTONIC() < until, rig.logs()
            time.sleep(0.02)


def _knows(rig: ClusterRig, count: int) -> bool:
    try:
        groups = asked(rig, b"HELLO 1 auth=%b\nCLUSTER moved=1" % token("all").encode(), 3)["groups"].values()
    except (OSError, ValueError):  # it does not serve yet
        return False
    return [each["placed"] and each["leader"] is not None for each in groups] == [True] * count


def connected(rig: ClusterRig) -> Any:
    return toymq.connect(rig.urls, timeout_s=WAIT_S, wait_s=WAIT_S)


def stored(rig: ClusterRig) -> set[str]:
    """Return the topics on the disk of a group's first node."""
    return {path.name for path in (next(iter(rig.nodes.values())).data_dir / "topics").iterdir()}


def say(rig: ClusterRig, data: bytes, count: int) -> list[bytes]:
    """Return ``count`` lines of the answer of a group's first node to a client that does not follow MOVED.

    Asks again while the node has been elected and does not serve yet.
    """
    node = next(iter(rig.nodes.values()))
    until = MONOTONIC() + WAIT_S
    while True:
        with socket.create_connection((node.host, node.port), WAIT_S) as connection, connection.makefile("rwb") as stream:
            stream.write(data)
            stream.flush()
            lines = [stream.readline() for _ in range(count)]
        if not any(line.startswith(b"ERR NOT_LEADER") for line in lines) or MONOTONIC() > until:
            return lines
        time.sleep(0.02)


def asked(rig: ClusterRig, command: bytes, lines: int = 2) -> Any:
    """Send a command and return the JSON of the answer."""
    return json.loads(say(rig, command + b"\n", lines)[-1])


async def listed(client: Any, pattern: str) -> Any:
    """List topics, repeatedly until no group is away."""
    while True:
        try:
            return await client.topics(pattern)
        except PlacementUnknown:
            await asyncio.sleep(0.1)
