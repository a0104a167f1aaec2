"""``replica.json``: the identity of a data directory's replica, and its promises.

Contract: replication.md, section 2; ADR 0097, 0106. Made with the directory and never shipped. Replaced as a whole, so that a
crash leaves the old file or the new one.
"""

import dataclasses
import json
import re
import threading
from dataclasses import dataclass
from typing import Any

from toymq_py.errors import DamagedData, DataDirectoryError
from toymq_py.replication.agreement import DEFAULT_GROUP, ClusterSettings
from toymq_py.replication.paths import is_file
from toymq_py.storage import checked_json
from toymq_py.storage.checked_json import parse_object
from toymq_py.storage.fs import FileSystem, replace_file

FILE_NAME = "replica.json"
VERSION = 1

_REPLICA = re.compile(r"[0-9a-f]{32}")
_LEASE = re.compile(r"[0-9]{1,20}")
_NUMBER_MAX = 2**64 - 1
DAMAGED_MAX = 1000


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """The content of the file.

    Args:
        replica: 32 hex digits.
        promised: the highest epoch that this replica has led or followed; 0: none.
        lease: the last lease that its node was granted; None: none.
        copying: a bulk copy into the directory is incomplete: the replica may not be elected.
        distrusted: etcd does not know the epoch that this replica promised: the replica is not elected any more.
        damaged: segments that the scrub found damaged, and for which another copy was asked; ``DAMAGED_MAX`` at most.
        name: the value of ``--cluster``, for people; "" in a file of an older version.
    """

    cluster: str
    group: str
    replica: str
    promised: int = 0
    lease: int | None = None
    copying: bool = False
    distrusted: bool = False
    damaged: tuple[str, ...] = ()
    name: str = ""


def encode(record: ReplicaRecord) -> bytes:
    """Encode the file. The lease is text, since a JSON number of 64 bits is not exact everywhere."""
    fields = {"version": VERSION, **dataclasses.asdict(record)}
    fields["lease"] = None if record.lease is None else str(record.lease)
    if not record.name:
        del fields["name"]
    return json.dumps(fields, indent=1).encode() + b"\n"


def decode(data: bytes) -> ReplicaRecord:
    """Decode the file. Raises: DamagedData, also for a file of a newer version."""
    fields = parse_object(FILE_NAME, data)
    version = fields.get("version")
    if version != VERSION or isinstance(version, bool):
        raise DamagedData(f"{FILE_NAME} has version {version!r:.20}; this toymq reads {VERSION}")
    replica, lease = fields.get("replica"), fields.get("lease")
    if not isinstance(replica, str) or _REPLICA.fullmatch(replica) is None:
        raise DamagedData(f"{FILE_NAME} has the replica id {replica!r:.60}, not 32 hexadecimal digits")
    if lease is not None and (not isinstance(lease, str) or _LEASE.fullmatch(lease) is None or int(lease) > _NUMBER_MAX):
        raise DamagedData(f"{FILE_NAME} has the lease {lease!r:.60}, not a number as text")
    return ReplicaRecord(
        cluster=_text(fields, "cluster"), group=_text(fields, "group"), replica=replica, promised=_number(fields, "promised"),
        lease=None if lease is None else int(lease), copying=_flag(fields, "copying"),
        distrusted=_flag(fields, "distrusted"), damaged=_paths(fields, "damaged"),
        name=_text(fields, "name") if "name" in fields else "",
    )  # fmt: skip


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise DamagedData(f"{FILE_NAME} lacks {name}")
    return value


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name, 0)
    if type(value) is not int or not 0 <= value <= _NUMBER_MAX:
        raise DamagedData(f"{FILE_NAME} has {name} {value!r:.40}, not a number from 0 on")
    return value


def _paths(fields: dict[str, Any], name: str) -> tuple[str, ...]:
    value = fields.get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, str) and is_file(each) for each in value):
        raise DamagedData(f"{FILE_NAME} has {name} {value!r:.60}, not a list of files of the layout")
    return tuple(value)


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise DamagedData(f"{FILE_NAME} has {name} {value!r:.40}, not true or false")
    return value


def misplaced(found: ReplicaRecord, name: str, group: str) -> str | None:
    """Why a directory cannot belong to this cluster and group, by the names that it was used with; None if it may."""
    if found.group == group and found.name in ("", name):
        return None
    of_cluster = f" of the cluster {found.name}" if found.name else ""
    options = " ".join([f"--cluster {found.name}"] * bool(found.name) + [f"--group {found.group}"])
    if found.group == DEFAULT_GROUP:
        options += " (without --group, if the cluster has no other)"
    return (
        f"the directory belongs to group {found.group}{of_cluster}, not to group {group} of the cluster {name}: start it with "
        f"{options}; a node of group {group} takes another --data-dir"
    )


def record_in(
    settings: ClusterSettings, name: str, group: str, found: ReplicaRecord | None, new_replica: str
) -> ReplicaRecord:
    """The record for a directory in a cluster: its existing one; or after ``toymqctl cluster adopt`` that of the adopted copy,
    or that of a new replica, whose files are then compared as in any join.

    Args:
        name: the value of ``--cluster``.
        found: the record in the directory's file; None without a file.
        new_replica: the id to give to a new replica.

    Raises: DataDirectoryError when the directory belongs elsewhere.
    """
    if found is None:
        return ReplicaRecord(settings.cluster, group, new_replica, name=name)
    if found.cluster == settings.cluster:
        return dataclasses.replace(found, name=name)
    if settings.adopted is None or found.cluster != settings.was:
        raise DataDirectoryError(misplaced(found, name, group) or (
            f"the directory belongs to group {group} of a cluster {found.name or name} of the id {found.cluster}, and etcd has "
            f"{settings.cluster} under this name: look first whether --cluster, --group and --etcd are those that it had; if "
            "etcd was wiped or restored, see the runbook in docs/clusters.md"
        ))  # fmt: skip
    if found.replica != settings.adopted:
        return ReplicaRecord(settings.cluster, group, new_replica, copying=found.copying, name=name)
    if found.copying:
        raise DataDirectoryError(f"{found.replica} was adopted, and is half copied: adopt another copy")
    return ReplicaRecord(settings.cluster, group, found.replica, name=name)


class ReplicaFile:
    """The file of one directory. Thread-safe: a change is written and synced under a lock."""

    def __init__(self, fs: FileSystem, root: str, record: ReplicaRecord) -> None:
        """``record``: the record in the file. Use ``load`` or ``create`` instead."""
        self._fs = fs
        self._path = f"{root}/{FILE_NAME}"
        self._record = record
        self._lock = threading.Lock()

    @classmethod
    def load(cls, fs: FileSystem, root: str) -> "ReplicaFile | None":
        """Read the file; None when there is none. Blocks. Raises: OSError; DamagedData."""
        data = checked_json.read(fs, f"{root}/{FILE_NAME}")
        return None if data is None else cls(fs, root, decode(data))

    @classmethod
    def create(cls, fs: FileSystem, root: str, record: ReplicaRecord) -> "ReplicaFile":
        """Write the file of a new replica, synced. Blocks. Raises: OSError."""
        replace_file(fs, f"{root}/{FILE_NAME}", encode(record))
        return cls(fs, root, record)

    @property
    def record(self) -> ReplicaRecord:
        """The record in the file, synced."""
        return self._record

    def change(self, **fields: object) -> ReplicaRecord:
        """Replace fields, synced; writes nothing when nothing changes. ``promised`` never decreases. Blocks. Returns: the
        record.

        Raises: OSError; then the file has the old record or the new one, and ``record`` is the old one.
        """
        with self._lock:
            record = dataclasses.replace(self._record, **fields)  # type: ignore[arg-type]
            record = dataclasses.replace(record, promised=max(record.promised, self._record.promised))
            if record != self._record:
                replace_file(self._fs, self._path, encode(record))
                self._record = record
            return record
