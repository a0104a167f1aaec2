"""Names and quantities and their grammar, and the values that pass between the layers.

Contract: protocol.md, "Framing". Knows no bytes on the wire or on disk.
"""

import re
from array import array
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal

from toymq_py.errors import BadArgument, BadName, ConfigError

IdRange = tuple[int, int]
"""First and last message id, both included. Ids are u64, dense in their topic, from 0."""

Shape = tuple[int, int]
"""Lengths of key and payload, in bytes, that all messages of a run have."""

Mode = Literal["exclusive", "shared"]
"""How sessions share one consumer: one at a time, or many that compete."""

NAME_BYTES_MAX = 196  # leaves room for ".dlq" and a temp suffix below the 255 bytes of a file name
DEAD_LETTERS = ".dlq"
"""Ends the name of a topic's dead-letter topic."""
KEY_BYTES_MAX = 512
PRODUCER_PREFIX = b"~seq~"
"""Begins the names under which clients number their publishes without a key; to a reader such a message has none."""
MSG_ID_MAX = 2**64 - 1
DURATION_MS_MAX = 10 * 366 * 24 * 3600 * 1000
"""Ten years in milliseconds: the longest duration that any command or setting takes."""

DEFAULT_MAX_PAYLOAD = 2 * 1024 * 1024
PAYLOAD_BYTES_LIMIT = 64 * 1024 * 1024
"""What ``--max-payload`` may be at most; fixed by the record format (storage.md)."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,195}\Z")
_PATTERN_WORD = re.compile(r"[A-Za-z0-9_-]+\Z|\*\Z|>\Z")


def check_name(kind: str, name: str) -> str:
    """Return ``name`` when it is a legal topic or consumer name.

    Args:
        kind: "topic" or "consumer", for the message.
        name: 1 to 196 of ``A-Z a-z 0-9 . _ -``, not beginning with ``.`` or ``-``.

    A dead-letter topic's name may be longer by its ``.dlq``.

    Raises:
        BadName: it is not.
    """
    if not (is_topic_name(name) if kind == "topic" else _NAME.match(name)):
        raise BadName(f"{kind} name must be 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 . _ - and not begin with . or -")
    return name


def is_topic_name(name: str) -> bool:
    """Whether a topic may have this name; a dead-letter topic's is longer than others by its suffix."""
    return _NAME.match(name) is not None or (
        name.endswith(DEAD_LETTERS) and _NAME.match(name.removesuffix(DEAD_LETTERS)) is not None
    )


def is_pattern(name: str) -> bool:
    """Whether the name has a wildcard word."""
    return "*" in name or ">" in name


def check_topic_or_pattern(name: str) -> str:
    """Return ``name`` when it is a legal topic name or pattern. Raises: BadName."""
    if is_pattern(name):
        return TopicPattern(name).text
    return check_name("topic", name)


class TopicPattern:
    """A topic name in which whole words may be ``*`` (one word) and the last ``>`` (one or more).

    A wildcard never matches ``dlq`` as the last word: dead letters are named by spelling it.
    """

    __slots__ = ("_regex", "_words", "text")

    def __init__(self, text: str) -> None:
        """Raises: BadName when a wildcard is not a whole word, or ``>`` is not the last."""
        check_name("topic", text.replace("*", "x").replace(">", "x"))
        self.text = text
        words = text.split(".")
        parts = []
        for i, word in enumerate(words):
            last = i == len(words) - 1
            if word == "*":
                parts.append(r"(?!dlq\Z)[^.]+" if last else r"[^.]+")
            elif word == ">" and last:
                parts.append(r"(?:[^.]+\.)*(?!dlq\Z)[^.]+")
            elif "*" in word or ">" in word:
                raise BadName("a wildcard is a whole word: * for one word, > for the rest at the end")
            else:
                parts.append(re.escape(word))
        self._regex = re.compile(r"\.".join(parts) + r"\Z")
        self._words = words

    def matches(self, topic: str) -> bool:
        """Whether a topic name falls under this pattern."""
        return self._regex.match(topic) is not None

    def covers(self, topic_or_pattern: str) -> bool:
        """Whether every topic that falls under another pattern falls under this one. Assumes that it is a legal one."""
        if not is_pattern(topic_or_pattern):
            return self.matches(topic_or_pattern)
        words, others = self.text.split("."), topic_or_pattern.split(".")
        if words[-1] == ">":
            if len(others) < len(words):
                return False
        elif len(others) != len(words) or others[-1] == ">":
            return False
        for i, other in enumerate(others):
            word = words[min(i, len(words) - 1)]
            wild = word in ("*", ">")
            if not wild and other != word:
                return False
            if wild and (not other or (other == "dlq" and i == len(others) - 1)):
                return False
        return True

    def overlaps(self, other: "TopicPattern | str") -> bool:
        """Whether a name can fall under this pattern and under the other one, or be that name."""
        if isinstance(other, str):
            return self.matches(other)
        one, two = self._words, other._words
        for i, (a, b) in enumerate(zip(one, two, strict=False)):
            if a == ">" or b == ">":
                rests = [one[i:], two[i:]]
                return all(_rest_may_match(mine, rest) for mine, rest in (rests, rests[::-1]) if mine == [">"])
            a_last, b_last = i == len(one) - 1, i == len(two) - 1
            if not (_word_may_match(a, b, last=a_last) if a == "*" else _word_may_match(b, a, last=b_last)):
                return False
        return len(one) == len(two)


def _word_may_match(word: str, other: str, *, last: bool) -> bool:
    """Whether a word of a pattern, at its end or not, and another's word can be one word of a name."""
    return word == other or (word == "*" and other != "" and not (last and other == "dlq"))


def _rest_may_match(rest: list[str], other: list[str]) -> bool:
    """The same of ``>`` and the other's remaining words."""
    return rest == [">"] and "" not in other and other[-1] != "dlq"


@dataclass(frozen=True, slots=True)
class Start:
    """Where a consumer begins, or is moved to: ``earliest | latest | <msg-id> | @<unix-ms>``.

    ``value`` is the id for "id", milliseconds since the epoch for "time", otherwise 0 and without meaning.
    """

    kind: Literal["earliest", "latest", "id", "time"]
    value: int = 0

    @classmethod
    def parse(cls, text: str) -> "Start":
        """Raises: BadArgument when the text is none of the four forms."""
        if text == "earliest":
            return EARLIEST
        if text == "latest":
            return LATEST
        at_time = text.startswith("@")
        digits = text[1:] if at_time else text
        if digits.isascii() and digits.isdigit() and len(digits) <= 20:
            value = int(digits)
            if at_time and value <= 2**63 // 1_000_000:
                return cls("time", value)
            if not at_time and value <= MSG_ID_MAX:
                return cls("id", value)
        raise BadArgument("a position is earliest, latest, a message id or @<unix-ms>")

    def __str__(self) -> str:
        return {"id": str(self.value), "time": f"@{self.value}"}.get(self.kind, self.kind)


EARLIEST = Start("earliest")
LATEST = Start("latest")


_DURATION_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_QUANTITY = re.compile(r"(\d{1,19})\s*([A-Za-z]*)\Z", re.ASCII)


def parse_number(what: str, text: str, low: int = 0, high: int = MSG_ID_MAX) -> int:
    """An unsigned decimal number; ``int`` alone would take "1_0", "+5" and " 5". Raises: BadArgument, which names ``what``."""
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and low <= int(text) <= high):
        raise BadArgument(f"invalid {what} {text[:50]!a}: write a whole number from {low} to {high}")
    return int(text)


def parse_duration_ms(text: str) -> int:
    """``250ms``, ``30s``, ``5m``, ``24h``, ``7d`` or plain milliseconds, as milliseconds.

    Raises: ConfigError when it is none of these, or longer than ten years.
    """
    match = _QUANTITY.match(text)
    unit = match[2] or "ms" if match else ""
    if match is None or unit not in _DURATION_UNITS_MS:
        raise ConfigError(f"{text!r} is no duration: write 250ms, 30s, 5m, 24h or 7d")
    value = int(match[1]) * _DURATION_UNITS_MS[unit]
    if value > DURATION_MS_MAX:
        raise ConfigError(f"{text!r} is longer than ten years")
    return value


def parse_size(text: str) -> int:
    """Bytes, or ``64KiB``, ``64MiB``, ``2GiB``, as bytes.

    Raises: ConfigError.
    """
    match = _QUANTITY.match(text)
    if match is None or match[2] not in _SIZE_UNITS:
        raise ConfigError(f"{text!r} is no size: write bytes, or 64KiB, 64MiB, 2GiB")
    return int(match[1]) * _SIZE_UNITS[match[2]]


def format_duration(ms: int) -> str:
    """The inverse of ``parse_duration_ms``, exactly, in the largest unit that allows it."""
    for unit in ("d", "h", "m", "s"):
        if ms and ms % _DURATION_UNITS_MS[unit] == 0:
            return f"{ms // _DURATION_UNITS_MS[unit]}{unit}"
    return f"{ms}ms"


def format_size(size: int) -> str:
    """The inverse of ``parse_size``, exactly, in the largest unit that allows it: 64MiB, 2GiB, 1000B."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _SIZE_UNITS[unit] == 0:
            return f"{size // _SIZE_UNITS[unit]}{unit}"
    return f"{size}B"


DURATION_SETTINGS = frozenset(
    ("visibility", "nack_backoff_min", "nack_backoff_max", "retain_acked_for", "retain_max_age", "ttl")
)
MAY_BE_ZERO = frozenset(("retain_acked_for",))
"""Of those; the others are a millisecond or more."""
SIZE_SETTINGS = frozenset(("backlog_max_bytes", "retain_max_bytes"))
"""Topic settings that people write with a unit. On the wire they are integers: milliseconds and bytes."""


def parse_setting(name: str, text: str) -> str:
    """A topic setting as people write it, ``30s`` say, as it is said on the wire, ``30000``. Raises: ConfigError."""
    if text != "default" and name in DURATION_SETTINGS:
        return str(parse_duration_ms(text))
    if text != "default" and name in SIZE_SETTINGS:
        return str(parse_size(text))
    return text


def format_setting(name: str, value: object) -> str:
    """The inverse, exactly."""
    text = str(value)
    if text.isdigit() and name in DURATION_SETTINGS:
        return format_duration(int(text))
    if text.isdigit() and name in SIZE_SETTINGS:
        return format_size(int(text))
    return text


def shape_of(keys: Sequence[bytes], payloads: Sequence[bytes]) -> Shape | None:
    """Of a run; None when they differ, or there are none."""
    if not keys:
        return None
    key_lens, payload_lens = list(map(len, keys)), list(map(len, payloads))
    key_len, payload_len, count = key_lens[0], payload_lens[0], len(key_lens)
    alike = key_lens.count(key_len) == count and payload_lens.count(payload_len) == count
    return (key_len, payload_len) if alike else None


class Records:
    """A run of committed records in ascending id order, as columns.

    Columns instead of objects: at several 100,000 messages a second a row object per message is what costs.
    Immutable by convention; slices share the columns' items. ``memo`` belongs to the encoder of the run: the session
    keeps the shared MSG frames there.

    Shapes: all columns have ``len(ids)`` items. ``keys[i]`` is b"" for none. ``headers`` is None when no record of
    the run has a header block, else b"" where one has none. ``expires_at_ns`` (wall clock) is None when no record of the
    run expires, else 0 where one does not.
    """

    __slots__ = ("expires_at_ns", "headers", "ids", "keys", "memo", "payload_bytes", "payloads", "ts_ns")

    def __init__(
        self,
        ids: Sequence[int],
        ts_ns: Sequence[int],
        keys: Sequence[bytes],
        payloads: Sequence[bytes],
        headers: Sequence[bytes] | None = None,
        expires_at_ns: Sequence[int] | None = None,
    ) -> None:
        self.ids = ids
        self.ts_ns = ts_ns
        self.keys = keys
        self.payloads = payloads
        self.headers = headers
        self.expires_at_ns = expires_at_ns
        self.payload_bytes = sum(map(len, payloads)) + (sum(map(len, headers)) if headers else 0)
        self.memo: Any = None

    def __len__(self) -> int:
        return len(self.ids)


class IdRows:
    """Rows of ascending ids, ranges for example, by columns: 8 bytes a number, in blocks that are copied and encoded one at a
    time. Immutable by convention.

    Assumes that rows ascend and no block is empty.
    """

    __slots__ = ("blocks", "width")

    def __init__(self, width: int, blocks: "Sequence[tuple[array[int], ...]]" = ()) -> None:
        """``width`` numbers are a row; each block has so many arrays of u64, all of one length."""
        self.width = width
        self.blocks = blocks

    @classmethod
    def of(cls, width: int, rows: Collection[Sequence[int]]) -> "IdRows":
        """Raises: OverflowError, TypeError, ValueError when a row is no list or tuple of ``width`` numbers, each a u64."""
        if not set(map(type, rows)) <= {list, tuple} or not set(map(type, chain.from_iterable(rows))) <= {int}:
            raise TypeError("rows of whole numbers were expected")
        if not set(map(len, rows)) <= {width}:
            raise ValueError(f"{width} numbers a row were expected")
        flat = array("Q", chain.from_iterable(rows))
        step = ID_ROWS_BLOCK * width
        parts = (flat[at : at + step] for at in range(0, len(flat), step))
        return cls(width, [tuple(part[column::width] for column in range(width)) for part in parts])

    def row_at(self, msg_id: int) -> tuple[int, ...] | None:
        """The last row that begins at or below an id."""
        at = bisect_right(self.blocks, msg_id, key=lambda block: block[0][0]) - 1
        if at < 0:
            return None
        block = self.blocks[at]
        row = bisect_right(block[0], msg_id) - 1
        return tuple(column[row] for column in block)

    def __len__(self) -> int:
        return sum(len(block[0]) for block in self.blocks)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return chain.from_iterable(zip(*block, strict=True) for block in self.blocks)

    def __eq__(self, other: object) -> bool:
        """Equal rows, in whatever blocks; also to a list of lists, as JSON has them."""
        if isinstance(other, IdRows | tuple | list):
            return list(self) == list(map(tuple, other))
        return NotImplemented

    def __repr__(self) -> str:
        return f"IdRows({', '.join(map(str, islice(self, 8)))}{', ...' if len(self) > 8 else ''})"


ID_ROWS_BLOCK = 1024
"""Rows of a block where ``IdRows`` makes them itself."""
