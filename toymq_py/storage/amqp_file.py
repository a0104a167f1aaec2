"""``amqp.json`` in the data directory: durable exchanges, queues and bindings of AMQP, behind a checksum. ADR 0123.

The broker and ``toymq backup`` read the file here. ``toymq_py.amqp.topology`` knows the content.
"""

from typing import Any

from toymq_py.storage import checked_json
from toymq_py.storage.beside_file import BesideFile

FILE_NAME = "amqp.json"


def encode(topology: dict[str, Any]) -> bytes:
    return checked_json.encode("amqp", topology)


def decode(data: bytes) -> dict[str, Any]:
    """Decode the file. Raises: DamagedData."""
    return checked_json.decode("amqp", data)


FILE = BesideFile(
    FILE_NAME,
    decode,
    private=False,
    when_damaged="--amqp does not start",
    put_aside="no exchange, queue or binding is declared: declare them again; the queues' topics stay",
)
