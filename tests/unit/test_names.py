"""Names and patterns of names. Contract: protocol.md, "Framing"."""

from collections.abc import Iterable
from contextlib import suppress
from itertools import product

import pytest

from toymq_py.errors import BadName, ConfigError
from toymq_py.names import (
    TopicPattern,
    check_host,
    check_name,
    is_dead_letters,
    is_pattern,
    other_name,
    partition_name,
    whole_name,
)


@pytest.mark.parametrize("name", ["a", "0", "_", "orders", "a.b-c_d.E9", "x" * 196, "a..b", "orders.dlq", "a."])
def test_names(name: str) -> None:
    assert check_name("topic", name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".a", "-a", "a/b", "../x", "a#", "a b", "a\n", "a\0", "ä", "x" * 197, "*", ">", "a:b", "CON\\"]
)
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(BadName, match="consumer name"):
        check_name("consumer", name)


@pytest.mark.parametrize(
    ("pattern", "topic", "matches"),
    [
        ("orders.*", "orders.eu", True),
        ("orders.*", "orders", False),
        ("orders.*", "orders.eu.de", False),
        ("orders.>", "orders.eu.de", True),
        ("orders.>", "orders", False),
        ("*", "orders", True),
        ("*", "orders.eu", False),
        (">", "orders.eu", True),
        ("*.eu", "orders.eu", True),
        ("*.eu", "a.b.eu", False),
        ("orders.*", "orders.dlq", False),
        ("orders.>", "orders.eu.dlq", False),
        (">", "dlq", False),
        ("orders.*.dlq", "orders.eu.dlq", True),
        ("orders.*", "orders.dlq2", True),
        ("*.x", "dlq.x", True),
        (">", "a.", True),  # a name may have empty words, and no wildcard saw it
        ("a.*", "a.", True),
        ("a.>", "a..b", True),
        ("a.*.b", "a..b", True),
        ("a.*", "a..b", False),
        ("a.*", "axb", False),
    ],
)
def test_patterns(pattern: str, topic: str, matches: bool) -> None:
    assert is_pattern(pattern)
    assert TopicPattern(pattern).matches(topic) is matches


@pytest.mark.parametrize("pattern", ["a*", "*a", "a.>.b", ">.a", "a.b>", "**", ".*", "-.*", "a/*", "x" * 196 + ".*"])
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(BadName):
        TopicPattern(pattern)


def _legal(texts: Iterable[str]) -> list[TopicPattern]:
    found = []
    for text in texts:
        with suppress(BadName):
            found.append(TopicPattern(text))
    return found


@pytest.mark.parametrize("host", ["localhost", "a.b-c.d", "127.0.0.1", "::1", "fe80::1%eth0", "bücher.example", "host."])
def test_hosts(host: str) -> None:
    assert check_host(host) == host


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "\udcff", "a\0b", ".".join(["a" * 50] * 6)])
def test_a_host_that_no_resolver_takes(host: str) -> None:
    """Found: the resolver raised UnicodeError, and every command ended in a traceback."""
    with pytest.raises(ConfigError, match=r"invalid host .*: a name has 1 to 63 characters between its dots"):
        check_host(host)


def test_a_pattern_covers_what_it_matches_whole() -> None:
    """Compare every two patterns of up to three words by the names that they match. The word "z" stands for all that no pattern
    has, and names are two words longer than patterns, for ``>``."""
    names = [".".join(words) for n in range(1, 6) for words in product(("a", "dlq", "z", ""), repeat=n)]
    patterns = _legal(".".join(words) for n in range(1, 4) for words in product(("a", "dlq", "*", ">", ""), repeat=n))
    matched = {pattern: frozenset(filter(pattern.matches, names)) for pattern in patterns}
    assert len(patterns) > 60
    for one in patterns:
        for other in patterns:
            expected = matched[other] <= matched[one]
            assert one.covers(other.text) is expected, f"{one.text} covers {other.text}: expected {expected}"


@pytest.mark.parametrize(
    ("name", "other"),
    [("orders", "orders#*"), ("orders.dlq", "orders#*.dlq"), ("orders#3", None), ("orders#3.dlq", None), ("a.*", None),
     ("*.orders#*", None)],
)  # fmt: skip
def test_all_partitions_have_two_names(name: str, other: str | None) -> None:
    assert other_name(name) == other
    assert other is None or other_name(other) == name


@pytest.mark.parametrize(("name", "partition"), [("orders", "orders#3"), ("orders.dlq", "orders#3.dlq")])
def test_the_suffix_of_dead_letters_stays_behind_the_number(name: str, partition: str) -> None:
    assert partition_name(name, "3") == partition
    assert whole_name(partition) == name
    assert is_dead_letters(partition) == (name == "orders.dlq")
