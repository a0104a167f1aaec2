"""``topic.json``: the settings of a topic that differ from the defaults, and its incarnation. No file, none of either.

Contract: delivery.md, "Per-topic settings" (whole numbers: milliseconds, bytes, counts). It has a checksum: one wrong digit of
a limit would drop messages; and the topic's name: so would the file of another topic. ADR 0085, 0126.

An incarnation tells a topic from one of the same name that was deleted before. It is written with the first settings, or when
it is first asked for, and stays until the topic is deleted. ADR 0135.
"""

from dataclasses import dataclass

from toymq_py.config.options import TopicSettings
from toymq_py.errors import DamagedData, RequestError
from toymq_py.storage import checked_json
from toymq_py.storage.checked_json import decode, encode, incarnation_of, parse_object
from toymq_py.storage.fs import FileSystem, replace_file
from toymq_py.storage.segment import topic_of

FILE_NAME = "topic.json"


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings to use, and why they cannot be trusted: then the defaults stand for them, and nothing that they might keep
    may be removed."""

    settings: TopicSettings
    problem: str | None = None
    incarnation: str | None = None


def load(fs: FileSystem, path: str) -> LoadedSettings:
    """Load the settings of the topic in a directory. Never raises for what the file holds, or the disk refuses of it. Raises:
    OSError of a passing shortage."""
    try:
        return read(fs, path)
    except DamagedData as error:
        return LoadedSettings(TopicSettings(), f"{FILE_NAME}: {error}")


def read(fs: FileSystem, path: str) -> LoadedSettings:
    """As ``load``. Raises: also DamagedData when the file cannot be trusted, as ``Unreadable`` when it cannot be read."""
    data = checked_json.read(fs, f"{path}/{FILE_NAME}")
    return LoadedSettings(TopicSettings()) if data is None else parse(data, topic_of(path))


def parse(data: bytes, topic: str) -> LoadedSettings:
    """Parse the content of the file. That of a toymq before 2026-11-23 has no checksum, before 2026-11-27 no name. Raises:
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


def store(fs: FileSystem, path: str, settings: TopicSettings, incarnation: str | None = None) -> None:
    """Put settings and incarnation on stable storage, with the directory if it is missing. Blocks. Raises: OSError."""
    file = f"{path}/{FILE_NAME}"
    fs.mkdir(path)
    fs.sync_dir(path.rpartition("/")[0])
    if incarnation is not None or settings != TopicSettings():
        identity = {} if incarnation is None else {"incarnation": incarnation}
        replace_file(fs, file, encode("settings", {"topic": topic_of(path), **identity, **settings.to_json()}))
    elif fs.exists(file):
        fs.unlink(file)
        fs.sync_dir(path)
