"""``earlier/`` of a backup: copies of topics that another log has taken the place of. ADR 0091.

A topic that was deleted, or lost, and made anew has another log under the same name, and so has an older state of the directory
that went on by itself. Neither may replace the only copy of what was there before, so that copy is put aside, as it is:
``earlier/<when its backup began>/topics/<topic>``. Each directory below ``earlier/`` is a backup of its own, for ``toymq
restore`` and ``toymq dump``. ``toymq backup --prune`` removes them.
"""

import time

from toymq_py.storage.fs import FileSystem, remove_tree
from toymq_py.storage.offline.backup_directory import BackupMark, make_directory, write_mark
from toymq_py.storage.topic_directories import topic_names

DIRECTORY_NAME = "earlier"


class SupersededCopies:
    """The superseded copies of one backup."""

    def __init__(self, fs: FileSystem, backup_dir: str, mark: BackupMark) -> None:
        """``mark``: the mark of the backup that made the present copies."""
        self._fs = fs
        self._topics = f"{backup_dir}/topics"
        self._earlier = f"{backup_dir}/{DIRECTORY_NAME}"
        self._mark = mark
        self._there = set(topic_names(fs, backup_dir))

    def put_aside(self, topic: str) -> None:
        """Move the copy of a topic below ``earlier/``. A copy that this very backup made, of a topic that was made anew
        meanwhile, is removed.

        Raises: OSError.
        """
        fs = self._fs
        if topic not in self._there:
            remove_tree(fs, f"{self._topics}/{topic}")
            return
        place = self._place(topic)
        for path in (self._earlier, place, f"{place}/topics"):
            make_directory(fs, path)
        write_mark(fs, place, self._mark)
        fs.rename(f"{self._topics}/{topic}", f"{place}/topics/{topic}")
        fs.sync_dir(f"{place}/topics")
        fs.sync_dir(self._topics)
        self._there.discard(topic)

    def _place(self, topic: str) -> str:
        name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._mark.began_ns // 1_000_000_000))
        place, n = f"{self._earlier}/{name}", 1
        while self._fs.exists(f"{place}/topics/{topic}"):
            n += 1
            place = f"{self._earlier}/{name}-{n}"
        return place

    def list(self) -> list[tuple[str, str]]:
        """The superseded topics, with the backup that each is in. Raises: OSError."""
        fs = self._fs
        places = [f"{self._earlier}/{name}" for name in fs.listdir(self._earlier)] if fs.is_dir(self._earlier) else []
        return sorted((topic, place) for place in places for topic in topic_names(fs, place))

    def remove(self) -> None:
        """Remove all superseded copies. Raises: OSError."""
        remove_tree(self._fs, self._earlier)
