"""The small objects beside the segments in a bucket: seals and states. JSON with a checksum, which names its topic (ADR
0192)."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from toymq_py.errors import DamagedData
from toymq_py.storage import checked_json
from toymq_py.storage.record import HEADER, adler32
from toymq_py.tier.keys import Place


class MisplacedObject(DamagedData):
    """A seal or a state names another topic, incarnation or segment than its key."""


class Part(NamedTuple):
    """A part of a segment object that can be fetched separately."""

    first_id: int
    start: int
    sha256: str


class Span(NamedTuple):
    """A part, and the id and position where it ends."""

    first_id: int
    next_id: int
    start: int
    end: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Seal:
    """The seal of a segment object: its size and checksums. ``next_id``: the first id after the segment.

    ``place`` and ``first_id``: the segment that it belongs to; None in seals from before 2026-11-29. ``begins_ns``: the time of
    the first record. ``parts``: those of a large segment, which cover it. ``adler32``: a checksum of the object for readers of
    all history, at a sixth of the cost of the SHA-256 (ADR 0208); None in seals from before 2026-11-29.

    No CRC-32 is used: over records that end in their own CRC-32 it depends only on their lengths.
    """

    next_id: int
    size: int
    sha256: str
    place: Place | None = None
    first_id: int | None = None
    begins_ns: int | None = None
    parts: Sequence[Part] = ()
    adler32: int | None = None

    @classmethod
    def of(cls, data: bytes, place: Place, first_id: int, next_id: int, parts: Sequence[Part] = ()) -> "Seal":
        begins_ns = time_of_first(data[: HEADER.size], first_id)
        return cls(next_id, len(data), hashlib.sha256(data).hexdigest(), place, first_id, begins_ns, parts, adler32(data))

    def spans(self) -> Iterator[Span]:
        """The parts, ascending, each with its end."""
        for part, (next_id, end, _) in pairwise([*self.parts, Part(self.next_id, self.size, "")]):
            yield Span(part.first_id, next_id, part.start, end, part.sha256)

    def fits(self, data: bytes) -> bool:
        return self.misfit(data) is None

    def misfit(self, data: bytes) -> str | None:
        """Why data is not the content that was sealed; None if it is."""
        if len(data) != self.size:
            return f"it has {len(data)} bytes, and its seal says {self.size}"
        found = hashlib.sha256(data).hexdigest()
        return None if found == self.sha256 else f"its SHA-256 is {found[:16]}…, and its seal says {self.sha256[:16]}…"

    def quick_misfit(self, data: bytes) -> str | None:
        """Why data is not the content that was sealed, or None; by the Adler-32 if the seal has one, for a reader that also
        checks each record and stores nothing."""
        if self.adler32 is None or len(data) != self.size:
            return self.misfit(data)
        found = adler32(data)
        return None if found == self.adler32 else f"its Adler-32 is {found:08x}, and its seal says {self.adler32:08x}"

    def misfit_of_size(self, size: int | None) -> str | None:
        """Why an object of this size is not the one that was sealed, or None. ``size``: None for a missing object."""
        if size is None:
            return "it is gone"
        return None if size == self.size else f"it has {size} bytes, and its seal says {self.size}"

    def encode(self) -> bytes:
        value: dict[str, Any] = {"next_id": self.next_id, "bytes": self.size, "sha256": self.sha256}
        if self.place is not None:
            value |= {**self.place._asdict(), "first_id": self.first_id}
        if self.begins_ns is not None:
            value["begins_ns"] = self.begins_ns
        if self.parts:
            value["parts"] = self.parts
        if self.adler32 is not None:
            value["adler32"] = self.adler32
        return checked_json.encode("seal", value)

    @classmethod
    def decode(cls, data: bytes, place: Place, first_id: int) -> "Seal":
        """Decode the seal under a segment's key.

        Raises: MisplacedObject when it is another segment's seal, DamagedData.
        """
        found = checked_json.decode("seal", data)
        try:
            next_id, size = checked_json.numbers([found["next_id"], found["bytes"]])
            seal = cls(next_id, size, str(found["sha256"]))
            if "topic" not in found:
                return seal
            named = _check_place(found, place, "seal")
            if found["first_id"] != first_id:
                raise MisplacedObject(f"it is the seal of the segment that begins at {found['first_id']}")
            begins_ns, quick = (_number(found, name) for name in ("begins_ns", "adler32"))
            return cls(next_id, size, seal.sha256, named, first_id, begins_ns, _parts(found.get("parts", []), first_id), quick)
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedData(f"the seal lacks what it should have: {error}") from None


def _number(found: dict[str, Any], name: str) -> int | None:
    """Return a number of a JSON object; None when it is missing. Raises: DamagedData."""
    return checked_json.numbers([found[name]])[0] if name in found else None


def time_of_first(head: bytes, first_id: int) -> int | None:
    """The time in the header of a segment's first record; None when the bytes are not the header of record ``first_id``."""
    if len(head) != HEADER.size:
        return None
    _, msg_id, ts_ns, _ = HEADER.unpack(head)
    return int(ts_ns) if msg_id == first_id else None


def _check_place(found: dict[str, Any], place: Place, kind: str) -> Place:
    """Check that an object names the topic and incarnation of its key. Raises: MisplacedObject."""
    if Place(found["topic"], found["incarnation"]) != place:
        other = f"{found['topic']}/{found['incarnation']}"
        raise MisplacedObject(f"it is the {kind} of another topic or incarnation, {other[:300]!a}")
    return place


def _parts(rows: Any, first_id: int) -> list[Part]:
    """Decode the parts of a seal. Raises: DamagedData, TypeError, ValueError."""
    parts = [Part(begin, start, str(sha256)) for begin, start, sha256 in rows]
    checked_json.numbers([number for part in parts for number in part[:2]])
    ascend = all(one.first_id < other.first_id and one.start < other.start for one, other in pairwise(parts))
    if parts and not (ascend and parts[0][:2] == (first_id, 0)):
        raise DamagedData("the parts of the seal do not cover the segment")
    return parts


@dataclass(frozen=True, slots=True)
class State:
    """A topic's offsets and settings files, as they were at a time (None: there was no file), and its next id."""

    next_id: int
    offsets: bytes | None
    settings: bytes | None

    def encode(self, place: Place) -> bytes:
        texts = {"offsets": _text(self.offsets), "settings": _text(self.settings)}
        return checked_json.encode("state", {"next_id": self.next_id, **texts, **place._asdict()})

    @classmethod
    def decode(cls, data: bytes, place: Place) -> "State":
        """Decode a state of a topic. Raises: MisplacedObject when it names another topic or incarnation, DamagedData."""
        found = checked_json.decode("state", data)
        try:
            if "topic" in found:
                _check_place(found, place, "state")
            (next_id,) = checked_json.numbers([found["next_id"]])
            return cls(next_id, _bytes(found["offsets"]), _bytes(found["settings"]))
        except (KeyError, AttributeError) as error:
            raise DamagedData(f"the state lacks what it should have: {error}") from None


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "surrogateescape")


def _bytes(text: Any) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")
