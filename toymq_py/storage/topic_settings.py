"""``topic.json``: the settings of a topic that differ from the defaults. No file, no such settings.

Contract: delivery.md, "Per-topic settings" (whole numbers: milliseconds, bytes, counts). It has a checksum: one wrong digit of
a limit would drop messages. ADR 0085.
"""

from toymq_py.config.options import TopicSettings
from toymq_py.errors import DamagedData, RequestError
from toymq_py.storage.checked_json import decode, encode, parse_object
from toymq_py.storage.fs import FileSystem, replace_file

FILE_NAME = "topic.json"


def load(fs: FileSystem, path: str) -> TopicSettings:
    """Load the settings of the topic in a directory. Raises: DamagedData, OSError."""
    file = f"{path}/{FILE_NAME}"
    if not fs.exists(file):
        return TopicSettings()
    try:
        return parse(fs.read_file(file))
    except DamagedData as error:
        raise DamagedData(f"{file}: {error}") from error


def parse(data: bytes) -> TopicSettings:
    """Parse the content of the file. That of a toymq before 2026-11-23 has no checksum. Raises: DamagedData."""
    checked = data.startswith(b'{"crc32"')
    try:
        return TopicSettings.from_json(decode("settings", data) if checked else parse_object("settings file", data))
    except RequestError as error:
        raise DamagedData(f"the settings file is invalid: {error}") from error


def store(fs: FileSystem, path: str, settings: TopicSettings) -> None:
    """Put the settings on stable storage, with the directory if it is missing. Blocks. Raises: OSError."""
    file = f"{path}/{FILE_NAME}"
    fs.mkdir(path)
    fs.sync_dir(path.rpartition("/")[0])
    if settings != TopicSettings():
        replace_file(fs, file, encode("settings", settings.to_json()))
    elif fs.exists(file):
        fs.unlink(file)
        fs.sync_dir(path)
