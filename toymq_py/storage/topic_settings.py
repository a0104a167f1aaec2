"""``topic.json``: the settings of a topic that differ from the defaults, and its incarnation. A topic that has neither has no
file; the empty file ``has-settings`` marks a topic that had one, so that a lost file is noticed (ADR 0221).

Contract: delivery.md, "Per-topic settings" (whole numbers: milliseconds, bytes, counts). It has a checksum, since one wrong
digit of a limit would drop messages, and the topic's name, since the file of another topic would drop them, too. ADR 0085,
0126.

An incarnation tells a topic from one of the same name that was deleted before. It is written with the first settings, or when
it is first asked for, and stays until the topic is deleted. ADR 0135.
"""

from contextlib import suppress
from dataclasses import dataclass

from toymq_py.config.topic_settings import TopicSettings
from toymq_py.errors import DamagedData, RequestError
from toymq_py.storage import checked_json
from toymq_py.storage.checked_json import decode, encode, incarnation_of, parse_object
from toymq_py.storage.fs import FileSystem, replace_file
from toymq_py.storage.segment import topic_of
from toymq_py.storage.segment_heads import settings_doubt

FILE_NAME = "topic.json"
MARK_NAME = "has-settings"
"""The name of an empty file. Each replica of a cluster makes its own, when it leads: followers of an older toymq know no such
file."""


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings to use, and why they cannot be trusted. In that case they are the defaults, and no message that the real
    ones might keep may be removed."""

    settings: TopicSettings
    problem: str | None = None
    incarnation: str | None = None


def load(fs: FileSystem, path: str) -> LoadedSettings:
    """Load the settings of the topic in a directory. A damaged or unreadable file raises nothing; the result reports it.
    Raises: OSError of a passing shortage."""
    try:
        return read(fs, path)
    except DamagedData as error:
        return LoadedSettings(TopicSettings(), f"{FILE_NAME}: {error}")


def read(fs: FileSystem, path: str) -> LoadedSettings:
    """As ``load``, but raises DamagedData when the file cannot be trusted, and Unreadable when it cannot be read."""
    data = _content(fs, path)
    return LoadedSettings(TopicSettings()) if data is None else _judged(fs, path, data)


def read_bytes(fs: FileSystem, path: str) -> bytes | None:
    """The content of the file, for a copy of it; None for a topic without one. Raises: as ``read``."""
    data = _content(fs, path)
    if data is not None:
        _judged(fs, path, data)
    return data


def _content(fs: FileSystem, path: str) -> bytes | None:
    data = checked_json.read(fs, f"{path}/{FILE_NAME}")
    if data is None and fs.exists(f"{path}/{MARK_NAME}"):
        raise DamagedData("the file is missing")
    return data


def _judged(fs: FileSystem, path: str, data: bytes) -> LoadedSettings:
    """Parse the content of the file. Raises: DamagedData, also for the settings of another topic or incarnation (ADR 0281);
    OSError of a passing shortage."""
    found = parse(data, topic_of(path))
    if found.incarnation is not None and (doubt := settings_doubt(fs, path, found.incarnation)) is not None:
        raise DamagedData(doubt)
    return found


def parse(data: bytes, topic: str) -> LoadedSettings:
    """Parse the content of the file. Files of a toymq before 2026-11-23 have no checksum, before 2026-11-27 no name. Raises:
    DamagedData, also for the settings of another topic."""
    checked = data.startswith(b'{"crc32"')
    found = decode("settings", data) if checked else parse_object("settings file", data)
    of = found.pop("topic", topic) if checked else topic
    if of != topic:
        raise DamagedData(f"these are the settings of topic {str(of)[:200]!a}")
    incarnation = incarnation_of(found) if checked else None
    if incarnation is not None:
        del found["incarnation"]
    try:
        return LoadedSettings(TopicSettings.from_json(found), incarnation=incarnation)
    except RequestError as error:
        raise DamagedData(f"the settings file is invalid: {error}") from error


def store(fs: FileSystem, path: str, settings: TopicSettings, incarnation: str | None = None, *, makes: bool = True) -> None:
    """Put settings and incarnation on stable storage. Blocks. ``makes``: see ``offsets.write``. Raises: OSError."""
    file = f"{path}/{FILE_NAME}"
    if makes:
        fs.mkdir(path)
        fs.sync_dir(path.rpartition("/")[0])
    if incarnation is not None or settings != TopicSettings():
        identity = {} if incarnation is None else {"incarnation": incarnation}
        replace_file(fs, file, encode("settings", {"topic": topic_of(path), **identity, **settings.to_json()}))
        mark(fs, path)
    elif fs.exists(file):
        forget(fs, path)
        fs.unlink(file)
        fs.sync_dir(path)


def mark(fs: FileSystem, path: str) -> None:
    """Create ``has-settings`` if the topic has a ``topic.json``. The next sync of the directory makes the mark durable; the
    file already is, so the mark is never alone."""
    with suppress(OSError):  # the next start tries again
        if fs.exists(f"{path}/{FILE_NAME}") and not fs.exists(f"{path}/{MARK_NAME}"):
            fs.open(f"{path}/{MARK_NAME}", create=True).close()


def forget(fs: FileSystem, path: str) -> None:
    """Remove ``has-settings``: the content of the lost file is given up. Raises: OSError."""
    with suppress(FileNotFoundError):
        fs.unlink(f"{path}/{MARK_NAME}")
        fs.sync_dir(path)
