"""The small objects beside the segments of a bucket: seals and states. Both are checked JSON."""

import hashlib
from dataclasses import dataclass
from typing import Any

from toymq_py.errors import DamagedData
from toymq_py.storage import checked_json


@dataclass(frozen=True, slots=True)
class Seal:
    """What a segment object has to be. ``next_id``: the first id behind the segment.

    A CRC-32 over records that end in their own CRC-32 says nothing: it is the same for all records of these lengths.
    """

    next_id: int
    size: int
    sha256: str

    @classmethod
    def of(cls, data: bytes, next_id: int) -> "Seal":
        return cls(next_id, len(data), hashlib.sha256(data).hexdigest())

    def fits(self, data: bytes) -> bool:
        return self.misfit(data) is None

    def misfit(self, data: bytes) -> str | None:
        """Why data is not what was sealed; None: it is."""
        if len(data) != self.size:
            return f"it has {len(data)} bytes, and its seal says {self.size}"
        found = hashlib.sha256(data).hexdigest()
        return None if found == self.sha256 else f"its SHA-256 is {found[:16]}…, and its seal says {self.sha256[:16]}…"

    def misfit_of_size(self, size: int | None) -> str | None:
        """As ``misfit``, of an object of which only the size is known; None: there is none."""
        if size is None:
            return "it is gone"
        return None if size == self.size else f"it has {size} bytes, and its seal says {self.size}"

    def encode(self) -> bytes:
        return checked_json.encode("seal", {"next_id": self.next_id, "bytes": self.size, "sha256": self.sha256})

    @classmethod
    def decode(cls, data: bytes) -> "Seal":
        """Raises: DamagedData."""
        found = checked_json.decode("seal", data)
        try:
            next_id, size = checked_json.numbers([found["next_id"], found["bytes"]])
            return cls(next_id, size, str(found["sha256"]))
        except KeyError as error:
            raise DamagedData(f"the seal lacks what it should have: {error}") from None


@dataclass(frozen=True, slots=True)
class State:
    """A topic's files beside its log, as they were at a time (None: there was none), and its next id."""

    next_id: int
    offsets: bytes | None
    settings: bytes | None

    def encode(self) -> bytes:
        texts = {"offsets": _text(self.offsets), "settings": _text(self.settings)}
        return checked_json.encode("state", {"next_id": self.next_id, **texts})

    @classmethod
    def decode(cls, data: bytes) -> "State":
        """Raises: DamagedData."""
        found = checked_json.decode("state", data)
        try:
            (next_id,) = checked_json.numbers([found["next_id"]])
            return cls(next_id, _bytes(found["offsets"]), _bytes(found["settings"]))
        except (KeyError, AttributeError) as error:
            raise DamagedData(f"the state lacks what it should have: {error}") from None


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "surrogateescape")


def _bytes(text: Any) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogateescape")
