"""Settings of a topic: their limits, and how they are changed. Contract: delivery.md, "Per-topic settings"."""

from dataclasses import fields

import pytest

from toymq_py.config.topic_settings import TopicSettings, check_dead_letter_settings
from toymq_py.errors import BadArgument
from toymq_py.setting_units import SETTINGS
from toymq_py.units import DURATION_MS_MAX


def test_settings_are_changed_unset_and_shown() -> None:
    settings = TopicSettings().changed({"visibility": "5000", "dedupe_keys": "0"})
    assert settings.to_json() == {"visibility": 5000, "dedupe_keys": 0}
    assert settings.changed({"visibility": "default"}).to_json() == {"dedupe_keys": 0}
    assert TopicSettings.from_json(settings.to_json()) == settings
    assert TopicSettings().to_json() == {}


def test_every_setting_of_the_contract_is_there_with_its_limits() -> None:
    names = [
        "visibility", "max_attempts", "nack_backoff_min", "nack_backoff_max", "dedupe_keys", "backlog_max_messages",
        "backlog_max_bytes", "when_full", "retain_acked_for", "retain_max_age", "retain_max_bytes", "ttl", "tier_local_bytes",
        "tier_local_age",
    ]  # fmt: skip
    assert [field.name for field in fields(TopicSettings)] == names
    assert list(SETTINGS) == names
    for name, limits in SETTINGS.items():
        for value in (limits[0], limits[-1]):
            assert TopicSettings().changed({name: str(value)}).to_json() == {name: value}


@pytest.mark.parametrize(
    "changes",
    [
        {"colour": "1"},
        {"visibility": "0"},
        {"visibility": "30s"},
        {"visibility": "-1"},
        {"visibility": str(DURATION_MS_MAX + 1)},
        {"dedupe_keys": "1e3"},
        {"retain_acked_for": ""},
        {"retain_acked_for": "9" * 50},
        {"max_attempts": "-1"},
        {"backlog_max_messages": "0"},
        {"backlog_max_bytes": "64MiB"},
        {"when_full": "drop"},
        {"when_full": "1"},
        {"retain_max_age": "0"},
        {"retain_max_bytes": str((1 << 62) + 1)},
        {"ttl": "0"},
        {"nack_backoff_min": "2", "nack_backoff_max": "1"},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_named(changes: dict[str, str]) -> None:
    with pytest.raises(BadArgument, match=next(iter(changes))):
        TopicSettings().changed(changes)


@pytest.mark.parametrize("name", ["max_attempts", "ttl"])
def test_what_has_no_effect_on_dead_letters_is_refused(name: str) -> None:
    check_dead_letter_settings("orders", {name: "1"})
    with pytest.raises(BadArgument, match=f"^{name} has no effect here"):
        check_dead_letter_settings("orders.dlq", {name: "1"})
    check_dead_letter_settings("orders.dlq", {"retain_max_age": "1"})
