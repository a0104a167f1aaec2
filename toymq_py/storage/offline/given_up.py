"""``given-up.json``: the ids of a topic that ``toymq repair`` has entered in the offsets as removed. Only a backup reads it.

For the offsets they are a gap on purpose, as what retention removed. A backup that has records of them keeps its copies, since
nobody decided that they should go. ADR 0086.
"""

from collections.abc import Iterable

from toymq_py.errors import DamagedData
from toymq_py.records import MSG_ID_MAX, IdRange
from toymq_py.storage import checked_json
from toymq_py.storage.fs import FileSystem, replace_file
from toymq_py.storage.id_ranges import union

FILE_NAME = "given-up.json"
_NAME = "ids"


def load(fs: FileSystem, path: str) -> list[IdRange]:
    """The ids of the topic in a directory, ascending; all ids when the file is damaged. Raises: OSError."""
    file = f"{path}/{FILE_NAME}"
    if not fs.exists(file):
        return []
    try:
        found = checked_json.decode(_NAME, fs.read_file(file)).get("lost", [])
        pairs = [checked_json.numbers(pair) for pair in found] if isinstance(found, list) else []
        return [(first, last) for first, last in pairs]
    except (DamagedData, ValueError):
        return [(0, MSG_ID_MAX)]


def add(fs: FileSystem, path: str, ids: Iterable[IdRange]) -> None:
    """Put more ids on stable storage. Raises: OSError."""
    lost = list(union([*load(fs, path), *ids]))
    replace_file(fs, f"{path}/{FILE_NAME}", checked_json.encode(_NAME, {"lost": lost}))
