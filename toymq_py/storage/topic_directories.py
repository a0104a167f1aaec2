"""The topic directories of a data directory, for code without an open broker. Contract: storage.md, "Layout"; ADR 0221.

``topics`` may be a mount point, or a link to another file system. Then a start writes the same random word into it and into the
file ``topics-mounted`` beside it, so that neither an empty mount point nor another file system is taken for it (ADR 0253,
0259).
"""

import re
import secrets
from collections.abc import Iterator
from contextlib import suppress

from toymq_py.errors import DataDirectoryError
from toymq_py.names import is_topic_name
from toymq_py.storage import unclean_ends
from toymq_py.storage.fs import FileSystem, read_if_there, write_synced

MOUNTED_NAME = "topics-mounted"
"""The name of a file of this machine alone: when a broker last started, ``topics`` was on another file system than the rest,
the one with the word in this file. Empty where that could not be written, and of an older version."""
WORD_NAME = "+mounted"
"""The name of the file in such a ``topics`` that has the word. No topic has this name, and a copy of ``topics/*`` has the file,
too."""
_WORD = re.compile(rb"[0-9a-f]{32}")
OF_A_USED_DIRECTORY = frozenset((
    MOUNTED_NAME, "LOCK", "quarantine", "alerts.json", "amqp.json", "moves.json", "partitions.json", "webhooks.json",
))  # fmt: skip
"""Names of files that only a data directory has in which ``topics`` was made before."""
LEFT_BY_PROCESSES = frozenset(("LOCK", unclean_ends.FILE_NAME, MOUNTED_NAME))
"""Names that a process leaves in a data directory in which it has stored nothing."""


def topic_names(fs: FileSystem, data_dir: str) -> list[str]:
    """Names of the topics that the broker would open. Raises: OSError."""
    root = f"{data_dir}/topics"
    return [name for name in _names(fs, data_dir) if fs.is_dir(f"{root}/{name}")]


def no_directories(fs: FileSystem, data_dir: str) -> Iterator[tuple[str, str]]:
    """The topic names under which ``topics`` has something else than a directory, with an error text for each. Raises:
    OSError."""
    for name in _names(fs, data_dir):
        path = f"{data_dir}/topics/{name}"
        if not fs.is_dir(path):
            yield name, (
                f"{path} is no directory, and takes the place of topic {name}: move it away, bring the topic's directory back "
                "if you can, and restart the broker"
            )


def _names(fs: FileSystem, data_dir: str) -> list[str]:
    root = f"{data_dir}/topics"
    return [name for name in fs.listdir(root) if is_topic_name(name)] if fs.is_dir(root) else []


def begin(fs: FileSystem, data_dir: str) -> None:
    """Make ``topics`` in a new data directory, before anything else of it is on stable storage: from now on its absence is an
    error. Raises: OSError."""
    if not ({*OF_A_USED_DIRECTORY, "workers", "topics.restoring"} & {*fs.listdir(data_dir)}):
        fs.mkdir(f"{data_dir}/topics")
        fs.sync_dir(data_dir)


def check_topics(fs: FileSystem, data_dir: str) -> None:
    """Raise DataDirectoryError when ``topics`` is missing, or was on another file system that is certainly not mounted now: the
    data directory would look as if it had never had a topic."""
    names = {*fs.listdir(data_dir)}
    topics, mounted = f"{data_dir}/topics", f"{data_dir}/{MOUNTED_NAME}"
    if not fs.is_dir(topics):
        if (there := OF_A_USED_DIRECTORY & names) and "workers" not in names:
            raise DataDirectoryError(
                f"{data_dir} has no directory topics, and was used before, it has {min(there)}: mount the file system of its "
                f"topics, or restore it from a backup; `mkdir {topics}` goes on without them"
            )
    elif MOUNTED_NAME in names and not _may_be_right(fs, data_dir):
        if topic_names(fs, data_dir):
            raise DataDirectoryError(
                f"{topics} has other topics than those of the last start, which were on a file system of their own: mount that "
                f"one; `rm {mounted}` goes on with the topics that are there"
            )
        raise DataDirectoryError(
            f"{topics} is empty, and was a file system of its own before: mount it; `rm {mounted}` goes on without its topics"
        )


def _may_be_right(fs: FileSystem, data_dir: str) -> bool:
    """Whether ``topics`` may be the same one as at the start that wrote ``topics-mounted``, or a copy of it in another
    place."""
    known = _word(fs, f"{data_dir}/{MOUNTED_NAME}")
    return (_is_mounted(fs, data_dir) or bool(topic_names(fs, data_dir))) and (
        not known or _word(fs, f"{data_dir}/topics/{WORD_NAME}") in (known, "")
    )


def note_mounted(fs: FileSystem, data_dir: str) -> None:
    """Note for ``check_topics`` whether ``topics`` is another file system, and which. A disk that refuses, such as a full one,
    leaves that to the next start."""
    topics, mounted = f"{data_dir}/topics", f"{data_dir}/{MOUNTED_NAME}"
    word = f"{topics}/{WORD_NAME}"
    with suppress(OSError):
        if not _is_mounted(fs, data_dir):
            for directory, path in ((data_dir, mounted), (topics, word)):
                if fs.exists(path):  # a word that stays below a mount point would pass for that of what is mounted there
                    fs.unlink(path)
                    fs.sync_dir(directory)
            return
        if not fs.exists(mounted):
            fs.open(mounted, create=True).close()
            fs.sync_dir(data_dir)
        found, known = _word(fs, word), _word(fs, mounted)
        if not found:
            found = known or secrets.token_hex(16)
            write_synced(fs, word, found.encode())
            fs.sync_dir(topics)
        if known != found:
            write_synced(fs, mounted, found.encode())  # half of it counts as none


def _word(fs: FileSystem, path: str) -> str | None:
    """The word in a file; "" if the word is incomplete or the file cannot be read; None without a file."""
    try:
        data = read_if_there(fs, path)
    except OSError:
        return ""
    if data is None:
        return None
    return data.decode() if _WORD.fullmatch(data) else ""


def _is_mounted(fs: FileSystem, data_dir: str) -> bool:
    return fs.inode(f"{data_dir}/topics")[0] != fs.inode(data_dir)[0]
