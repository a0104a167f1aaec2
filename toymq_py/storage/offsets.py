"""``offsets.json``: consumer state on disk, and its previous generation.

Contract: storage.md, "offsets.json"; ADR 0004. The consumers' own form is their business; here they are JSON objects.
"""

import contextlib
import errno
import logging
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from toymq_py.errors import DamagedData
from toymq_py.id_rows import IdRows
from toymq_py.records import IdRange
from toymq_py.storage import checked_json
from toymq_py.storage.fs import FileSystem, write_synced
from toymq_py.storage.segment import topic_of
from toymq_py.storage.segment_heads import log_incarnation

logger = logging.getLogger("toymq_py.storage")

FILE_NAME = "offsets.json"
PREVIOUS_NAME = "offsets.json.prev"
TEMPORARY_NAME = "offsets.json.tmp"
DAMAGED_NAME = "offsets.json.damaged"
MARK_NAME = "has-offsets"
"""The name of an empty file: a generation was written. It tells a topic whose generations are both gone from one that never had
one (ADR 0070)."""
VERSION = 1
_GENERATION = re.compile(rb'"generation": ([0-9]{1,20}),')


@dataclass(frozen=True, slots=True)
class OffsetsState:
    """Content of one topic's offsets file. ``first_id`` and ``next_id`` count where they are higher than the log's own.

    ``removed``: id ranges that retention took from behind a segment that has to stay; without it they would look like a
    loss (ADR 0008). Written only when there are some.
    """

    first_id: int = 0
    next_id: int = 0
    consumers: dict[str, dict[str, Any]] = field(default_factory=dict)
    removed: tuple[IdRange, ...] = ()
    incarnation: str | None = field(default=None, compare=False)
    """The incarnation of the log that has the ids (ADR 0218); None in a file of an older toymq."""
    generation: int | None = field(default=None, compare=False)
    """The number of this write, which rises with each: a file that is older than ``offsets.json.prev`` is known by it (ADR
    0240). None in a file of an older toymq, and where only one is ever written: backups, the bucket."""
    modes: dict[str, str] = field(default_factory=dict)
    """How sessions share each consumer, or did last, by its name (ADR 0248); exclusive where it is missing. Written only when
    there are some."""

    def has_removed(self, msg_id: int) -> bool:
        """Whether retention or PURGE removed an id, so that its absence is not a loss."""
        return msg_id < self.first_id or any(first <= msg_id <= last for first, last in self.removed)


@dataclass(frozen=True, slots=True)
class AckedView:
    """Ids that one consumer has acked on stable storage: all below ``floor``, and ``above``."""

    floor: int
    above: IdRows

    @classmethod
    def of(cls, consumer: dict[str, Any]) -> "AckedView":
        """Read a consumer's object of the offsets file.

        Raises: DamagedData when the fields that matter here are missing or of another form.
        """
        try:
            last_acked, start = checked_json.numbers([consumer["last_acked"], consumer["start"]])
            above = consumer["acked_above"]
            if not isinstance(above, IdRows):
                above = IdRows.of(2, above)
            return cls(last_acked + 1 if consumer["has_acked"] else start, above)
        except (DamagedData, KeyError, OverflowError, TypeError, ValueError):
            raise DamagedData("a consumer must be an object with start, has_acked, last_acked and acked_above") from None

    def covers(self, first: int, last: int) -> bool:
        """Whether every id of the range is acked."""
        if last < self.floor:
            return True
        first = max(first, self.floor)
        row = self.above.row_at(first)
        return row is not None and last <= row[1]


class OffsetsSource(Enum):
    """Which file a loaded state came from."""

    CURRENT = "offsets.json"
    PREVIOUS = "its previous generation"
    NEW = "a topic that never had one"
    LOST = "nothing: both generations are damaged or missing"


@dataclass(frozen=True, slots=True)
class LoadedOffsets:
    state: OffsetsState
    source: OffsetsSource
    problem: str | None = None
    """What is wrong with a generation that was passed over, for the log and for ``toymq verify``. With one, the state may lack
    consumers."""

    @property
    def first_id_known(self) -> bool | None:
        """Whether the log is known to begin at ``first_id``: retention stores that before it removes. None for a topic that
        never had offsets."""
        return None if self.source is OffsetsSource.NEW else self.problem is None


def encode(state: OffsetsState, topic: str | None = None) -> bytes:
    """Encode the file. Many ranges take long, but hold the GIL for no more than a millisecond at a time."""
    fields: dict[str, Any] = {"version": VERSION} if topic is None else {"version": VERSION, "topic": topic}
    fields |= {} if state.incarnation is None else {"incarnation": state.incarnation}
    fields |= {} if state.generation is None else {"generation": state.generation}
    fields |= {
        "first_id": state.first_id,
        "next_id": state.next_id,
        "consumers": state.consumers,
    }
    fields |= {"removed": state.removed} if state.removed else {}
    fields |= {"modes": state.modes} if state.modes else {}
    return checked_json.encode_pieces("state", checked_json.pieces_of(fields))


def decode(data: bytes, topic: str | None = None) -> OffsetsState:
    """Decode the file. Raises: DamagedData when checksum or form are wrong, or the file is of another topic than ``topic``.
    Files of a toymq before 2026-11-23 have no topic."""
    found = checked_json.decode("state", data)
    if topic is not None and found.get("topic", topic) != topic:
        raise DamagedData(f"these are the offsets of topic {str(found['topic'])[:200]!a}")
    first_id, next_id, consumers = found.get("first_id"), found.get("next_id"), found.get("consumers")
    if found.get("version") != VERSION:
        raise DamagedData(f"offsets version {found.get('version')!r} is unknown: this toymq reads version {VERSION}")
    if type(first_id) is not int or type(next_id) is not int or not 0 <= first_id <= next_id < 1 << 64:
        raise DamagedData("first_id and next_id of the offsets must be whole numbers, first_id the lower one")
    if not isinstance(consumers, dict) or not all(isinstance(value, dict) for value in consumers.values()):
        raise DamagedData("consumers of the offsets must be an object of objects")
    for consumer in consumers.values():
        _pack(consumer)
    try:
        removed = tuple((first, last) for first, last in map(checked_json.numbers, found.get("removed", ())))
    except (DamagedData, TypeError, ValueError):
        raise DamagedData("removed of the offsets must hold pairs of ids") from None
    generation = found.get("generation")
    if generation is not None and (type(generation) is not int or generation < 0):
        raise DamagedData("generation of the offsets must be a whole number from 0 on")
    modes = found.get("modes", {})
    if not isinstance(modes, dict) or not all(isinstance(mode, str) for mode in modes.values()):
        raise DamagedData("modes of the offsets must be an object of strings")
    return OffsetsState(first_id, next_id, consumers, removed, checked_json.incarnation_of(found), generation, modes)


def read(fs: FileSystem, path: str) -> OffsetsState | None:
    """Read one generation from a topic's directory, and judge whether it is of the topic there (ADR 0218, 0281). Returns: None
    when there is none. Raises: DamagedData, also for the offsets of another topic or incarnation; Unreadable when the disk
    refuses the file; OSError of a passing shortage."""
    directory = path.rpartition("/")[0]
    data = checked_json.read(fs, path)
    if data is None:
        return None
    state = decode(data, topic_of(directory))
    if state.incarnation is not None:
        log = log_incarnation(fs, directory)
        if log is not None and log != state.incarnation:
            raise DamagedData(f"these are the offsets of another incarnation, {state.incarnation}, and the log is of {log}")
    return state


def _pack(consumer: dict[str, Any]) -> None:
    """Pack the rows of a consumer into columns. Other values stay as they are, for ``ConsumerSnapshot`` to judge."""
    for name, width in (("acked_above", 2), ("attempts", 3)):
        with contextlib.suppress(KeyError, OverflowError, TypeError, ValueError):
            consumer[name] = IdRows.of(width, consumer[name])


def load(fs: FileSystem, directory: str) -> LoadedOffsets:
    """Load the newest generation that is valid (recovery, step 8). Damaged and unreadable files raise nothing; the result
    reports them.

    Raises: OSError of a passing shortage.
    """
    problems: list[str] = []
    for name, source in ((FILE_NAME, OffsetsSource.CURRENT), (PREVIOUS_NAME, OffsetsSource.PREVIOUS)):
        try:
            state = read(fs, f"{directory}/{name}")
            if state is not None and source is OffsetsSource.CURRENT and (problem := _stale(fs, directory, state)) is not None:
                problems.append(problem)
                continue
            if state is not None:
                return LoadedOffsets(state, source, "; ".join(problems) or None)
        except DamagedData as error:
            problems.append(f"{name}: {error}")
        else:
            if source is OffsetsSource.CURRENT and _was_removed(fs, directory):
                problems.append(f"{name}: the file is missing")
    if not problems and fs.exists(f"{directory}/{MARK_NAME}"):
        problems.append(f"{FILE_NAME} and {PREVIOUS_NAME}: the files are missing")
    if problems:
        return LoadedOffsets(OffsetsState(), OffsetsSource.LOST, "; ".join(problems))
    return LoadedOffsets(OffsetsState(), OffsetsSource.NEW)


def _stale(fs: FileSystem, directory: str, state: OffsetsState) -> str | None:
    """Why ``state``, from the present file, is not the newest that was written: the previous generation is valid and not older.
    None if ``state`` is the newest, as far as both files have generation numbers. If so, only the beginning of the previous
    file is read.

    Raises: OSError of a passing shortage.
    """
    path, previous, generation = f"{directory}/{FILE_NAME}", f"{directory}/{PREVIOUS_NAME}", state.generation
    if generation is None or (seen := _peek_generation(fs, previous)) is None or seen < generation:
        return None
    if _peek_generation(fs, path) != generation:
        return None  # a broker runs, and has written since: what was read was the newest then
    try:
        before = read(fs, previous)
    except DamagedData:
        return None
    if before is None or before.generation is None or before.generation < generation:
        return None
    if before.generation == generation:
        return f"{FILE_NAME}: it is no newer than {PREVIOUS_NAME}, both are generation {generation}: one is a copy of the other"
    return f"{FILE_NAME}: it is older than {PREVIOUS_NAME}: generation {generation}, and {before.generation}"


def _peek_generation(fs: FileSystem, path: str) -> int | None:
    """The generation number that a file claims, unchecked; None without one, or when it cannot be read.

    Raises: OSError of a passing shortage.
    """
    found = checked_json.peek(fs, path, _GENERATION)
    return None if found is None else int(found)


def _was_removed(fs: FileSystem, directory: str) -> bool:
    """Whether the present generation existed and is gone: a kill between the renames of ``write`` leaves only the temp file."""
    if fs.exists(f"{directory}/{TEMPORARY_NAME}") or not fs.exists(f"{directory}/{PREVIOUS_NAME}"):
        return False
    return not fs.exists(f"{directory}/{FILE_NAME}")  # a broker that runs may have ended the second rename meanwhile


def settle(fs: FileSystem, directory: str, loaded: LoadedOffsets) -> None:
    """Write back the state that ``load`` found, when that was the previous generation. Otherwise a damaged present one would
    replace the sound one at the next ``write``, and after a kill between the renames the temp file is about to be removed. If
    no generation is sound, the damaged one goes aside, too: it tells a backup, which may have a sound one, that consumers were
    lost.

    Raises: OSError.
    """
    path = f"{directory}/{FILE_NAME}"
    if loaded.source is OffsetsSource.LOST:
        note_lost(fs, directory)
        return
    if loaded.source is not OffsetsSource.PREVIOUS:
        return
    if loaded.problem is None:
        fs.rename(f"{directory}/{PREVIOUS_NAME}", path)
    elif fs.exists(path):
        fs.rename(path, f"{directory}/{DAMAGED_NAME}")
    else:
        return
    fs.sync_dir(directory)


def note_lost(fs: FileSystem, directory: str) -> None:
    """Leave ``offsets.json.damaged``, the damaged file or an empty one, as a sign that the known consumers are lost.

    Raises: OSError.
    """
    path, damaged = f"{directory}/{FILE_NAME}", f"{directory}/{DAMAGED_NAME}"
    _mark(fs, directory)
    fs.sync_dir(directory)  # without mark and file the topic would look like one that never had a consumer
    if fs.exists(path):
        fs.rename(path, damaged)
    elif not fs.exists(damaged):
        fs.open(damaged, create=True).close()
    fs.sync_dir(directory)


def write(fs: FileSystem, directory: str, data: bytes, *, makes: bool = True) -> None:
    """Write a new generation: temp file, sync, the present one becomes the previous, rename, sync of the directory.

    A kill between the two renames leaves the previous generation alone, which is the last one that was finished. So the
    previous generation is never as new as the present one.

    Args:
        makes: whether to make a missing directory. That of a topic with messages was removed below the running broker: made
            anew, with offsets alone, it would hide that from the next start.

    Raises: OSError; nothing of the present generations is lost then. EFBIG: ``load`` would not read it.
    """
    if len(data) > checked_json.FILE_BYTES_MAX:
        raise OSError(errno.EFBIG, f"{len(data)} bytes of consumers exceed {checked_json.FILE_BYTES_MAX}", directory)
    path = f"{directory}/{FILE_NAME}"
    temporary = f"{directory}/{TEMPORARY_NAME}"
    if makes and not fs.exists(path):  # it may be there and its name not on the disk yet: a first commit is making it
        fs.mkdir(directory)
        fs.sync_dir(directory.rpartition("/")[0])
    for place in (temporary, f"{directory}/{PREVIOUS_NAME}"):
        _clear(fs, place)
    try:
        write_synced(fs, temporary, data)
        if fs.exists(path):
            fs.rename(path, f"{directory}/{PREVIOUS_NAME}")
        fs.rename(temporary, path)
        fs.sync_dir(directory)
        _mark(fs, directory)
    except OSError:
        with contextlib.suppress(OSError):
            if fs.exists(path) or not fs.exists(f"{directory}/{PREVIOUS_NAME}"):  # else it tells that the renames were begun
                fs.unlink(temporary)  # on a full disk the torn temp file would hold space that acks need
        raise


def _clear(fs: FileSystem, path: str) -> None:
    """Move a directory that takes the place of a file aside: otherwise one generation could be written, and then no more.
    Raises: OSError; then none is written, and the topic stays degraded where its offsets were lost."""
    if fs.is_dir(path):
        try:
            fs.rename(path, f"{path}.damaged")
        except OSError as error:
            raise OSError(error.errno, f"{path} is a directory, and cannot be moved away: {error.strerror}", path) from None
        logger.error("%s was a directory, which is in the way of the offsets: moved to %s.damaged", path, path)


def _mark(fs: FileSystem, directory: str) -> None:
    """Create the mark that offsets were written. The next generation's sync of the directory makes it durable: never before the
    first generation is."""
    mark = f"{directory}/{MARK_NAME}"
    if not fs.exists(mark):
        with contextlib.suppress(OSError):  # the next write tries again
            fs.open(mark, create=True).close()
