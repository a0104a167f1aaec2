"""``moves.json`` in the data directory: topics whose copy here is not the only one, behind a checksum. ADR 0194.

A copy that arrives from another group is incomplete until the move's switch; one that leaves is obsolete after it. The mark is
written before the first byte of an arriving copy, and before the switch of a leaving one; it is removed when the move is
settled. So after any kill, no start serves a topic of another group.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from toymq_py.errors import DamagedData, RequestError
from toymq_py.names import check_name
from toymq_py.storage import checked_json
from toymq_py.storage.beside_file import BesideFile
from toymq_py.storage.fs import FileSystem

FILE_NAME = "moves.json"


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark for a topic, and its dead-letter topic, that moves here ``from`` another group or away ``to`` it.

    Args:
        group: the other group.
        cluster: the cluster's UUID, from this group's settings. If it differs later, etcd was lost, and what etcd says of
            topics then does not concern this move.
    """

    way: Literal["from", "to"]
    group: str
    cluster: str


def encode(marks: Mapping[str, Mark]) -> bytes:
    fields = {topic: {"way": mark.way, "group": mark.group, "cluster": mark.cluster} for topic, mark in sorted(marks.items())}
    return checked_json.encode("moves", fields)


def decode(data: bytes) -> dict[str, Mark]:
    """Decode the marks, by topic. Raises: DamagedData."""
    marks = {}
    for topic, fields in checked_json.decode("moves", data).items():
        match fields:
            case {"way": ("from" | "to") as way, "group": str(group), "cluster": str(cluster)}:
                marks[topic] = Mark(way, group, cluster)
            case _:
                raise DamagedData(f"topic {topic[:100]!a} in {FILE_NAME} has an invalid mark")
        try:
            check_name("topic", topic)
        except RequestError as error:
            raise DamagedData(f"topic {topic[:100]!a} in {FILE_NAME}: {error}") from None
    return marks


FILE = BesideFile(
    FILE_NAME,
    decode,
    private=False,
    when_damaged="the broker does not start",
    put_aside="half copies of topics that were being moved between groups are not known any more: see that no topic is in two",
)


def load(fs: FileSystem, directory: str) -> dict[str, Mark]:
    """The marks of a directory, none without a file. Blocks. Raises: DamagedData, OSError."""
    data = FILE.read(fs, directory)
    return {} if data is None else decode(data)
