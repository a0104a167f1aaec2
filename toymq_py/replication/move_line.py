"""The protocol by which the leader of a group asks the leader of another group for a topic. Pure. ADR 0194.

    > MOVE 1 cluster=<name> group=<from> to=<g> epoch=<of that leader> attempt=<revision> topic=<topic> [auth=<token>]
    < MOVING                          or    ERR <CODE> <text>, and the end
    < COPY … UNLINK … COPIED          frames as between replicas: the files that changed since the last round
    > SYNCED                          they are on every disk of the asking group; rounds repeat until little is left
    < COPY … UNLINK … PLAN            the last round, while the topic is held: PLAN has the size of each file
    > SYNCED
    < MOVED                           the asking group has the topic now    or    ERR …, and the end

It runs over a connection to ``--replicate``. If MOVED does not arrive, etcd knows which group has the topic.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from toymq_py.errors import BadOperation
from toymq_py.replication.operations import POSITION_MAX
from toymq_py.replication.paths import is_file

MOVE: Final = b"MOVE "
"""The beginning of the line; as long as ``PASS``."""
MOVING: Final = b"MOVING\n"
SYNCED: Final = b"SYNCED\n"
MOVED: Final = b"MOVED\n"
VERSION: Final = 1

_LINE = re.compile(
    r"MOVE ([0-9]{1,4}) cluster=([A-Za-z0-9_-]{1,63}) group=([A-Za-z0-9-]{1,32}) to=([A-Za-z0-9-]{1,32})"
    r" epoch=([0-9]{1,19}) attempt=([0-9]{1,19}) topic=([A-Za-z0-9._#-]{1,210})(?: auth=([A-Za-z0-9._~%-]{1,800}))?\n"
)


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """A leader's request for a topic of another group.

    Args:
        group: the group that has the topic.
        to: the group that asks; ``epoch``: its leader's.
        attempt: the etcd revision of the key that requests the move; earlier attempts are over.
        token: the secret of the nodes; kept out of ``repr``.
    """

    cluster: str
    group: str
    to: str
    epoch: int
    attempt: int
    topic: str
    token: str | None
    version: int = VERSION

    def __repr__(self) -> str:
        return f"MoveRequest({self.topic}, {self.cluster}, {self.group}, {self.to}, {self.epoch}, {self.attempt})"


def encode(asked: MoveRequest) -> bytes:
    auth = "" if asked.token is None else f" auth={quote(asked.token, safe='')}"
    return (
        f"MOVE {asked.version} cluster={asked.cluster} group={asked.group} to={asked.to} epoch={asked.epoch}"
        f" attempt={asked.attempt} topic={asked.topic}{auth}\n"
    ).encode("ascii")


def decode(line: bytes) -> MoveRequest:
    """Decode the line MOVE. Raises: BadOperation."""
    match = _LINE.fullmatch(line.decode("latin-1"))
    if match is None:
        raise BadOperation(f"an invalid line: {line[:60]!a}")
    version, cluster, group, to, epoch, attempt, topic, token = match.groups()
    return MoveRequest(
        cluster, group, to, int(epoch), int(attempt), topic, None if token is None else unquote(token), int(version)
    )


def encode_sizes(sizes: Mapping[str, int]) -> bytes:
    """Encode the sizes of a topic's files, for PLAN."""
    return json.dumps(dict(sorted(sizes.items())), separators=(",", ":")).encode()


def decode_sizes(data: bytes) -> dict[str, int]:
    """Decode the sizes of a topic's files. Raises: BadOperation."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadOperation(f"the sizes are not JSON: {error!s:.100}") from None
    if not isinstance(found, dict) or not all(
        is_file(path) and type(size) is int and 0 <= size <= POSITION_MAX for path, size in found.items()
    ):
        raise BadOperation("the sizes are not those of files")
    return found
