"""``webhooks.json`` in the data directory: the webhooks by name, behind a checksum.

Contract: gateway.md. The broker, ``toymq definitions`` and ``toymq backup`` read the file here, so that each accepts the same.
"""

from collections.abc import Mapping
from dataclasses import asdict

from toymq_py.config.webhooks import WEBHOOKS_MAX, Webhook, check_webhook_name
from toymq_py.errors import BadArgument, DamagedData, RequestError
from toymq_py.storage import checked_json
from toymq_py.storage.beside_file import BesideFile
from toymq_py.storage.fs import FileSystem

FILE_NAME = "webhooks.json"


def encode(webhooks: Mapping[str, Webhook]) -> bytes:
    """Encode webhooks as the file's bytes. Raises: BadArgument when there are too many."""
    if len(webhooks) > WEBHOOKS_MAX:
        raise BadArgument(f"{len(webhooks)} webhooks exceed the limit of {WEBHOOKS_MAX}: delete some first")
    return checked_json.encode("webhooks", {name: asdict(webhook) for name, webhook in webhooks.items()})


def decode(data: bytes) -> dict[str, Webhook]:
    """The webhooks in the file's bytes. Raises: DamagedData, which names the webhook that is invalid."""
    webhooks = {}
    for name, fields in checked_json.decode("webhooks", data).items():
        try:
            if not isinstance(fields, dict):
                raise BadArgument("its definition is not an object")
            webhooks[check_webhook_name(name)] = Webhook.from_json(fields)
        except RequestError as error:
            raise DamagedData(f"webhook {name[:100]!a}: {error}") from None
    return webhooks


FILE = BesideFile(
    FILE_NAME, decode, private=True, when_damaged="no webhook pushes", put_aside="no webhook is defined: define them again"
)


def load(fs: FileSystem, directory: str) -> dict[str, Webhook]:
    """The webhooks of a directory, none without a file. Blocks. Raises: DamagedData, OSError."""
    data = FILE.read(fs, directory)
    return {} if data is None else decode(data)
