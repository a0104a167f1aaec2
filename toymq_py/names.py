"""Names of topics, consumers and hosts, and patterns of topic names. Contract: protocol.md, "Framing"."""

import re
from collections.abc import Iterable

from toymq_py.errors import BadName, ConfigError

NAME_BYTES_MAX = 196  # leaves room for ".dlq" and a temp suffix below the 255 bytes of a file name
HOST_CHARS_MAX = 253
NAMED_MAX = 5
"""Most names that an error lists: of 196 characters each, they fit into a header line."""
DEAD_LETTERS = ".dlq"
"""The end of the name of a topic's dead-letter topic."""

PARTITION_MARK = "#"
"""The mark between the name of a partitioned topic and the number of a partition: ``orders#3``. ``orders#*`` are all of
them."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,195}\Z")
_TOPIC = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,195}(?:#(?:0|[1-9][0-9]{0,3}))?\Z")
_ALL_PARTITIONS = PARTITION_MARK + "*"
_INCARNATION = re.compile(r"[0-9a-f]{16}\Z")
_GROUP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,31}\Z")
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}\Z")
"""The name of a cluster, which is a key of etcd and a word of a table: no slash, no dot, no space."""


def check_name(kind: str, name: str) -> str:
    """Return ``name`` if it is a legal topic or consumer name. ``.dlq`` of a dead-letter topic and ``#3`` of a partition do not
    count towards its length.

    The error does not repeat the name, which may be a token in the wrong place; callers that know better add it.

    Args:
        kind: "topic" or "consumer", for the error.

    Raises: BadName.
    """
    if not (is_topic_name(name) if kind == "topic" else _NAME.match(name)):
        partition = "; # is for the number of a partition, as in orders#3" if kind == "topic" and PARTITION_MARK in name else ""
        rule = f"{kind} name must be 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 . _ - and not begin with . or -"
        raise BadName(rule + partition)
    return name


def is_topic_name(name: str) -> bool:
    """Whether a topic may have this name. ``.dlq`` of a dead-letter topic and ``#3`` of a partition do not count towards its
    length."""
    match = _TOPIC.match(name) or (_TOPIC.match(name.removesuffix(DEAD_LETTERS)) if is_dead_letters(name) else None)
    return match is not None


def is_dead_letters(name: str) -> bool:
    """Whether this is the name of a dead-letter topic."""
    return name.endswith(DEAD_LETTERS)


def _split(name: str) -> tuple[str, str]:
    """A name without the suffix ``.dlq``, and the suffix if it has it."""
    return name.removesuffix(DEAD_LETTERS), DEAD_LETTERS if is_dead_letters(name) else ""


def partition_name(name: str, numbers: str) -> str:
    """The name of a topic's partition, or of several: ``orders#3``. A suffix ``.dlq`` stays at the end."""
    stem, letters = _split(name)
    return f"{stem}{PARTITION_MARK}{numbers}{letters}"


def whole_name(name: str) -> str:
    """The partitioned topic of a partition, or of the pattern of all its partitions: ``orders`` for ``orders#3`` and
    ``orders#*``. A suffix ``.dlq`` stays; other names are returned unchanged."""
    return name.partition(PARTITION_MARK)[0] + _split(name)[1] if PARTITION_MARK in name else name


def other_name(name: str) -> str | None:
    """The other name for all partitions of a topic: ``orders#*`` for ``orders``, and the reverse; likewise for their dead
    letters. None for the name of a single partition, and for any other pattern."""
    stem, letters = _split(name)
    if stem.endswith(_ALL_PARTITIONS):
        stem = stem.removesuffix(_ALL_PARTITIONS)
        return None if is_pattern(stem) else stem + letters
    return None if is_pattern(stem) or PARTITION_MARK in stem else partition_name(name, "*")


def some_of(names: Iterable[str], most: int = NAMED_MAX) -> str:
    """Names for an error, in order: ``a, b and 7 more``, or ``none``."""
    ordered = sorted(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(ordered[:most]) + more or "none"


def is_pattern(name: str) -> bool:
    """Whether the name has a wildcard."""
    return "*" in name or ">" in name


def check_host(host: str) -> str:
    """Return the host of a network address, if a resolver would accept it. Raises: ConfigError, not the resolver's
    UnicodeError."""
    invalid = ConfigError(f"invalid host {host[:HOST_CHARS_MAX]!a}: a name has 1 to 63 characters between its dots")
    if len(host) > HOST_CHARS_MAX or not host.isprintable():
        raise invalid
    try:
        host.encode("idna")
    except UnicodeError:
        raise invalid from None
    return host


def check_cluster_name(name: str) -> str:
    """Return the name of a cluster or of a node. Raises: ConfigError."""
    if _CLUSTER_NAME.match(name) is None:
        raise ConfigError(f"invalid name {name[:64]!a}: 1 to 63 of A-Z a-z 0-9 _ -, the first a letter or digit")
    return name


def check_group_name(name: str) -> str:
    """Return the name of a group of a cluster. Raises: ConfigError."""
    if _GROUP_NAME.match(name) is None:
        raise ConfigError(f"invalid name {name[:64]!a} of a group: 1 to 32 of A-Z a-z 0-9 -, the first a letter or digit")
    return name


def check_topic_or_pattern(name: str) -> str:
    """Return ``name`` when it is a legal topic name or pattern. Raises: BadName."""
    if is_pattern(name):
        return TopicPattern(name).text
    return check_name("topic", name)


def is_incarnation(text: str) -> bool:
    """Whether a text has the form of a topic's incarnation (ADR 0135)."""
    return _INCARNATION.match(text) is not None


class TopicPattern:
    """A pattern of topic names: words may be ``*`` (any one word), and the last one ``>`` (one or more words). Dots separate
    words, which may be empty: ``a.`` has two.

    A wildcard never matches ``dlq`` as the last word: dead-letter topics must be spelled out. ``#*`` after a name matches
    every partition: ``orders#*``, ``orders#*.dlq``.
    """

    __slots__ = ("_regex", "_words", "text")

    def __init__(self, text: str) -> None:
        """Raises: BadName when a wildcard is not a whole word, or ``>`` is not the last."""
        check_name("topic", text.replace(_ALL_PARTITIONS, "#0").replace("*", "x").replace(">", "x"))
        self.text = text
        words = text.split(".")
        parts = []
        for i, word in enumerate(words):
            last = i == len(words) - 1
            if word == "*":
                parts.append(r"(?!dlq\Z)[^.]*" if last else r"[^.]*")
            elif word == ">" and last:
                parts.append(r"(?:[^.]*\.)*(?!dlq\Z)[^.]*")
            elif word.endswith(_ALL_PARTITIONS) and not is_pattern(stem := word.removesuffix(_ALL_PARTITIONS)):
                parts.append(re.escape(stem) + "#[0-9]+")
            elif "*" in word or ">" in word:
                raise BadName("a wildcard is a whole word: * for one word, > for the rest at the end")
            else:
                parts.append(re.escape(word))
        self._regex = re.compile(r"\.".join(parts) + r"\Z")
        self._words = words

    @classmethod
    def of_partitions(cls, name: str) -> "TopicPattern":
        """A pattern that matches every partition of a topic, or for ``<topic>.dlq`` their dead-letter topics. Its text is
        ``name``."""
        pattern = cls(other_name(name) or name)
        pattern.text = name
        return pattern

    def matches(self, topic: str) -> bool:
        """Whether the pattern matches a topic name."""
        return self._regex.match(topic) is not None

    def covers(self, topic_or_pattern: str) -> bool:
        """Whether this pattern matches every topic that another legal pattern matches."""
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
            if wild and other == "dlq" and i == len(others) - 1:
                return False
        return True

    def overlaps(self, other: "TopicPattern | str") -> bool:
        """Whether some topic name matches both patterns, or this one matches a name."""
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
    """Whether a word of one pattern and a word of another pattern can match the same word of a name."""
    return word == other or (word == "*" and not (last and other == "dlq"))


def _rest_may_match(rest: list[str], other: list[str]) -> bool:
    """Whether a pattern's ``>`` and the remaining words of another pattern can match the same words."""
    return rest == [">"] and other[-1] != "dlq"
