"""``partitions.json`` in the data directory: the partitioned topics by name, behind a checksum. ADR 0184.

It is written before the first partition of a topic is made, and marks a topic as ``deleting`` before the first partition is
removed: a start after a kill completes either. Of several workers each has the whole file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toymq_py.config.topic_settings import TopicSettings
from toymq_py.errors import DamagedData, RequestError
from toymq_py.partitions import Partitioned, check_whole_name, parse_partitions
from toymq_py.storage import checked_json
from toymq_py.storage.beside_file import BesideFile
from toymq_py.storage.fs import FileSystem

FILE_NAME = "partitions.json"


@dataclass(frozen=True, slots=True)
class StoredPartitions:
    """A partitioned topic; ``deleting``: its partitions are being removed."""

    topic: Partitioned
    deleting: bool = False


def encode(found: Mapping[str, StoredPartitions]) -> bytes:
    return checked_json.encode("partitions", {name: fields_of(stored) for name, stored in sorted(found.items())})


def fields_of(stored: StoredPartitions) -> dict[str, object]:
    """The JSON object of one topic, also in etcd (ADR 0198)."""
    topic = stored.topic
    gone = {"deleting": True} if stored.deleting else {}
    return {"partitions": topic.count, "settings": dict(topic.settings), **gone}


def decode(data: bytes) -> dict[str, StoredPartitions]:
    """Decode the partitioned topics. Raises: DamagedData, which names the topic that is invalid."""
    found = {}
    for name, fields in checked_json.decode("partitions", data).items():
        try:
            found[name] = stored_of(name, fields)
        except DamagedData as error:
            raise DamagedData(f"topic {name[:100]!a} in {FILE_NAME}: {error}") from None
    return found


def stored_of(name: str, fields: Any) -> StoredPartitions:
    """Decode a topic from its JSON object. Raises: DamagedData."""
    try:
        count = parse_partitions(str(fields["partitions"]))
        settings = {word: str(value) for word, value in fields["settings"].items()}
        TopicSettings().changed(settings)
        return StoredPartitions(Partitioned(check_whole_name(name), count, settings), bool(fields.get("deleting")))
    except (RequestError, AttributeError, KeyError, TypeError) as error:
        raise DamagedData(str(error)) from None


FILE = BesideFile(
    FILE_NAME,
    decode,
    private=False,
    when_damaged="the broker does not start",
    put_aside="topics with partitions here are refused until `CREATE <topic> partitions=N` brings each back, with the number "
    "that it had and with what is in its partitions; `toymq verify` names them",
)


def load(fs: FileSystem, directory: str) -> dict[str, StoredPartitions]:
    """The partitioned topics of a directory, none without a file. Blocks. Raises: DamagedData, OSError."""
    data = FILE.read(fs, directory)
    return {} if data is None else decode(data)
