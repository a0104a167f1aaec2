"""Parsing and printing durations and sizes."""

import pytest

from toymq_py.config.topic_settings import TopicSettings
from toymq_py.errors import BadArgument, ConfigError
from toymq_py.partitions import parse_partitions
from toymq_py.units import (
    DURATION_MS_MAX,
    agreeing,
    check_number,
    counted,
    format_duration,
    format_size,
    parse_duration_ms,
    parse_number,
    parse_size,
    parse_time_ns,
    rounded_size,
)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("5", 5), ("250ms", 250), ("30s", 30_000), ("5 m", 300_000), ("24h", 86_400_000), ("7d", 604_800_000)],
)


def test_a_duration_has_a_unit_or_is_milliseconds(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1.5s", "5x", "11y", "٣s", "3660d1", "3661d"])
def test_a_wrong_duration_is_named_with_the_remedy(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^invalid duration '.*': "):
        parse_duration_ms(text)
    assert parse_duration_ms("3660d") == DURATION_MS_MAX


@pytest.mark.parametrize(("text", "size"), [("0", 0), ("1000", 1000), ("64KiB", 65_536), ("2 GiB", 2 << 30), ("7B", 7)])
def test_a_size_has_a_binary_unit_or_is_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "lots", "64kb", "64MB", "1.5MiB", "-1"])
def test_a_wrong_size_is_named_with_the_remedy(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^invalid size '.*': write bytes, or 64KiB, 64MiB, 2GiB$"):
        parse_size(text)


@pytest.mark.parametrize("number", [0, 1, 999, 1000, 1024, 60_000, 90_000, 86_400_000, 1 << 30, (1 << 30) + 1])
def test_what_is_formatted_is_read_as_the_same(number: int) -> None:
    assert parse_duration_ms(format_duration(number)) == number
    assert parse_size(format_size(number)) == number


def test_zeros_ahead_of_a_number_do_not_count() -> None:
    found = [parse_number("window", "07", 1, 7), parse_partitions("08"), parse_duration_ms("08s"), parse_size("08KiB")]
    assert found == [7, 8, 8000, 8192]
    assert TopicSettings().changed({"max_attempts": "08"}) == TopicSettings(max_attempts=8)


@pytest.mark.parametrize("text", ["", "1_0", "+5", " 5", "-1", "8", "٣"])
def test_a_number_is_decimal_digits_within_its_bounds(text: str) -> None:
    assert parse_number("window", "7", 1, 7) == 7
    with pytest.raises(BadArgument, match=r"^invalid window .*: write a whole number from 1 to 7$"):
        parse_number("window", text, 1, 7)


@pytest.mark.parametrize(
    "value",
    [True, 0, 8, -1, 1.0, "7", None, [7], {}, 16**5000],
    ids=lambda value: ascii(value) if value != 16**5000 else "long",
)
def test_a_number_of_a_document_is_a_whole_number_within_its_bounds(value: object) -> None:
    assert check_number("window", 7, 1, 7) == 7
    with pytest.raises(BadArgument, match=r"^invalid window '.{1,50}': write a whole number from 1 to 7$"):
        check_number("window", value, 1, 7)


@pytest.mark.parametrize(("size", "shown"), [(0, "0B"), (1023, "1023B"), (52_979_458_048, "49.3GiB"), (1 << 40, "1TiB")])
def test_a_measured_size_is_rounded(size: int, shown: str) -> None:
    assert rounded_size(size) == shown


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:01Z", 10**9), ("1970-01-01 00:00:01", 10**9), ("1970-01-01 00:00:01 UTC", 10**9),
        ("1970-01-01T01:00:00.000001+01:00", 1000), ("2026-11-28", 1795824000 * 10**9),
        ("@1795824000123", 1795824000123 * 10**6),
    ],
)  # fmt: skip
def test_times(text: str, ns: int) -> None:
    assert parse_time_ns(text) == ns


@pytest.mark.parametrize("text", ["", "noon", "@", "@1795824000", "@x", "1969-12-31", "2026-13-01", "2h", "@" + "9" * 30])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="write 2026-11-28T09:30:00Z"):
        parse_time_ns(text)


def test_what_is_said_of_one_is_in_the_singular() -> None:
    """Found: the log had `1 records are lost`."""
    assert [counted(count, "record") for count in (0, 1, 2)] == ["0 records", "1 record", "2 records"]
    assert counted(1, "record", "are lost, were there") == "1 record is lost, was there"
    assert counted(2, "record", "are lost, were there") == "2 records are lost, were there"


def test_a_predicate_agrees_with_how_many_it_is_said_of() -> None:
    assert [agreeing("run", count) for count in (1, 2)] == ["runs", "run"], "`b1, b2 of group b runs`"
