"""``replica.json``: which replica a data directory is, and what it has promised. Contract: replication.md, section 2; ADR 0097, 0106.

Made with the directory, never shipped: two directories with one replica id are one too many. Replaced as a whole, so that a crash leaves
the old file or the new one.
"""

import dataclasses
from dataclasses import dataclass

from toymq_py.storage.fs import FileSystem

FILE_NAME = "replica.json"


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """What the file says.

    Args:
        replica: 32 hex digits.
        promised: the highest epoch that this replica has led or followed; 0: none.
        lease: the last lease that its node was granted; None: none.
        clean: the last life of its node ended with everything synced.
        copying: a bulk copy into the directory has begun and is not whole: it may not be elected.
        distrusted: etcd does not know the epoch that it promised: it may not be elected until an operator adopts it.
    """

    cluster: str
    group: str
    replica: str
    promised: int = 0
    lease: int | None = None
    clean: bool = False
    copying: bool = False
    distrusted: bool = False


class ReplicaFile:
    """The file of one directory. Thread-safe: a change reads, writes and syncs under a lock."""

    def __init__(self, fs: FileSystem, root: str, record: ReplicaRecord) -> None:
        """As ``load`` or ``create`` found it."""

    @classmethod
    def load(cls, fs: FileSystem, root: str) -> "ReplicaFile | None":
        """Read the file; None when there is none. Blocks. Raises: OSError; DamagedData."""
        raise NotImplementedError

    @classmethod
    def create(cls, fs: FileSystem, root: str, record: ReplicaRecord) -> "ReplicaFile":
        """Write the file of a new replica, synced. Blocks. Raises: OSError."""
        raise NotImplementedError

    @property
    def record(self) -> ReplicaRecord:
        raise NotImplementedError

    def change(self, **fields: object) -> ReplicaRecord:
        """Replace fields, synced; nothing is written when nothing changes. ``promised`` never sinks. Blocks. Raises: OSError."""
        return dataclasses.replace(self.record, **fields)  # type: ignore[arg-type]
