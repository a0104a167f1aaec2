"""Topic settings as words of a command line."""

import click
import pytest

from toymqctl.settings import format_settings, in_wire_units, parse_settings


def test_words_become_what_is_said_on_the_wire() -> None:
    assert parse_settings(("visibility=2m", "retain_max_bytes=64MiB", "dedupe_keys=default", "when_full=reject")) == {
        "visibility": "2m", "retain_max_bytes": "64MiB", "dedupe_keys": "default", "when_full": "reject",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("visibility",), "invalid setting 'visibility': write NAME=VALUE"),
        (("=30s",), "invalid setting '=30s'"),
        (("visibility=",), "invalid setting 'visibility='"),
        (("max_attempts=1", "max_attempts=2"), "max_attempts is given twice"),
        (("visibility=30",), "visibility needs a unit: write 30s or 30ms, not '30'"),
        (("Visibility=30s",), "a name in settings"),
    ],
)
def test_an_invalid_word_is_named(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(click.UsageError, match=text):
        parse_settings(words)


def test_what_a_client_read_is_shown_with_units() -> None:
    found = in_wire_units({"visibility": 90, "retain_max_bytes": 1 << 26, "when_full": "reject"})
    assert found == {"visibility": 90_000, "retain_max_bytes": 1 << 26, "when_full": "reject"}
    assert format_settings(found) == ["visibility=90s", "retain_max_bytes=64MiB", "when_full=reject"]


def test_a_time_of_nothing_is_refused_with_the_units_that_a_time_needs_here() -> None:
    """Found: for 0s the error was the broker's "a whole number of milliseconds", and for such a number "visibility needs a
    unit"."""
    with pytest.raises(click.UsageError, match="visibility is a duration from 1ms to ten years, not '0s': write 30s or 2m"):
        parse_settings(["visibility=0s"])
    with pytest.raises(click.UsageError, match="ttl is a duration from 1ms"):
        parse_settings(["ttl=0"])
    with pytest.raises(click.UsageError, match="visibility needs a unit: write 1000s or 1000ms"):
        parse_settings(["visibility=1000"])
    assert parse_settings(["retain_acked_for=0s"]) == {"retain_acked_for": "0s"}
