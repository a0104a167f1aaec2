"""``alerts.json`` in the data directory: the alert rules by name, behind a checksum. ADR 0149.

The broker and ``toymq backup`` read the file here, so that each accepts the same.
"""

from collections.abc import Mapping
from dataclasses import asdict

from toymq_py.config.alerts import ALERTS_MAX, Alert
from toymq_py.errors import BadArgument, DamagedData, RequestError
from toymq_py.names import check_name
from toymq_py.storage import checked_json
from toymq_py.storage.beside_file import BesideFile
from toymq_py.storage.fs import FileSystem

FILE_NAME = "alerts.json"


def encode(alerts: Mapping[str, Alert]) -> bytes:
    """Encode alert rules as the file's bytes. Raises: BadArgument when there are too many."""
    if len(alerts) > ALERTS_MAX:
        raise BadArgument(f"{len(alerts)} alerts exceed the limit of {ALERTS_MAX}: delete some first, or use patterns")
    return checked_json.encode("alerts", {name: asdict(alert) for name, alert in alerts.items()})


def decode(data: bytes) -> dict[str, Alert]:
    """The alerts in the file's bytes. Raises: DamagedData, which names the alert that is invalid."""
    alerts = {}
    for name, fields in checked_json.decode("alerts", data).items():
        try:
            if not isinstance(fields, dict):
                raise BadArgument("its definition is not an object")
            alerts[check_name("alert", name)] = Alert.from_json(fields)
        except RequestError as error:
            raise DamagedData(f"alert {name[:100]!a}: {error}") from None
    return alerts


FILE = BesideFile(
    FILE_NAME, decode, private=True, when_damaged="no alert fires", put_aside="no alert is defined: define them again"
)


def load(fs: FileSystem, directory: str) -> dict[str, Alert]:
    """The alerts of a directory, none without a file. Blocks. Raises: DamagedData, OSError."""
    data = FILE.read(fs, directory)
    return {} if data is None else decode(data)
