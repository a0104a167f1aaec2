"""``amqp.json`` in the data directory: durable exchanges, queues and bindings of AMQP, behind a checksum. ADR 0123.

The broker and ``toymq backup`` read the file here. What is in it is the business of ``toymq_py.amqp.topology``.
"""

from typing import Any

from toymq_py.storage import checked_json
from toymq_py.storage.fs import FileSystem, replace_file

FILE_NAME = "amqp.json"


def encode(topology: dict[str, Any]) -> bytes:
    return checked_json.encode("amqp", topology)


def decode(data: bytes) -> dict[str, Any]:
    """Raises: DamagedData."""
    return checked_json.decode("amqp", data)


def read(fs: FileSystem, directory: str) -> bytes | None:
    """The file's bytes, None when there is no file. Blocks. Raises: OSError."""
    try:
        return fs.read_file(f"{directory}/{FILE_NAME}")
    except FileNotFoundError:
        return None


def write(fs: FileSystem, directory: str, data: bytes) -> None:
    """Put the file in place, synced. Blocks. Raises: OSError."""
    replace_file(fs, f"{directory}/{FILE_NAME}", data)
