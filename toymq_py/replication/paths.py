"""The grammar of paths in the stream: which files of a data directory replicas share.

Contract: replication.md, section 4. Paths are relative to the data directory. The leader ships only paths that fit the grammar;
a follower ends the link at any other, so that no leader, hostile or broken, writes outside the layout. Temporary files,
``LOCK``, ``replica.json``, ``spool/`` and ``replaced/`` do not fit: each replica has its own.
"""

import re

PATH_BYTES_MAX = 300
"""Most bytes of a path, above the longest: ``topics/``, a name of 205 characters, a file name of 49."""

_TOPIC = r"topics/[A-Za-z0-9_][A-Za-z0-9._-]{0,195}(?:#(?:0|[1-9][0-9]{0,3}))?(?:\.dlq)?"
_GRAVE = r"topics/\.deleted-[0-9]{1,20}"
_NUMBER = r"[0-9]{20}"
_NAMES = (
    rf"{_NUMBER}\.(?:log|idx|log\.foreign)",
    rf"{_NUMBER}-{_NUMBER}\.removed",
    r"(?:offsets|topic|segments|given-up)\.json",
    r"offsets\.json\.(?:prev|damaged)",
    r"evicted\.json(?:\.prev)?",
    r"has-offsets",
)
_FILE = re.compile(rf"(?:(?:{_TOPIC}|{_GRAVE})/(?:{'|'.join(_NAMES)})|(?:webhooks|alerts|amqp|partitions|moves)\.json)")
_DIRECTORY = re.compile(rf"|topics|{_TOPIC}|{_GRAVE}")
_TOPIC_DIRECTORY = re.compile(rf"{_TOPIC}|{_GRAVE}")
_GRAVE_DIRECTORY = re.compile(_GRAVE)


def is_file(path: str) -> bool:
    """Whether replicas have a file of this path in common."""
    return _FILE.fullmatch(path) is not None


def is_directory(path: str) -> bool:
    """Whether replicas have a directory of this path in common. "" is the data directory."""
    return _DIRECTORY.fullmatch(path) is not None


def is_topic_directory(path: str) -> bool:
    """Whether a path is that of a topic's directory, or of a deleted topic's."""
    return _TOPIC_DIRECTORY.fullmatch(path) is not None


def is_deleted(path: str) -> bool:
    """Whether a path is that of a deleted topic's directory, which is removed file by file."""
    return _GRAVE_DIRECTORY.fullmatch(path) is not None


def is_rename(old: str, new: str) -> bool:
    """Whether a rename is legal: of a file within its directory, or of a topic's directory to that of a deleted topic."""
    if is_file(old):
        return is_file(new) and old.rpartition("/")[0] == new.rpartition("/")[0]
    return is_topic_directory(old) and is_deleted(new)
