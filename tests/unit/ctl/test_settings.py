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
