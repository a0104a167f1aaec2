"""Topic settings as people write them, and on the wire. Contract: delivery.md, "Per-topic settings"."""

from toymq_py.setting_units import DURATION_SETTINGS, MAY_BE_ZERO, SETTINGS, SIZE_SETTINGS, format_setting, parse_setting


def test_each_setting_is_a_duration_a_size_a_count_or_a_word() -> None:
    others = SETTINGS.keys() - DURATION_SETTINGS - SIZE_SETTINGS
    assert others == {"max_attempts", "dedupe_keys", "backlog_max_messages", "when_full"}
    assert not DURATION_SETTINGS & SIZE_SETTINGS
    assert {"retain_acked_for", "tier_local_age"} == MAY_BE_ZERO


def test_a_setting_is_said_on_the_wire_as_a_number() -> None:
    assert parse_setting("visibility", "30s") == "30000"
    assert parse_setting("retain_max_bytes", "1GiB") == str(1 << 30)
    assert parse_setting("visibility", "default") == "default"
    assert parse_setting("max_attempts", "30s") == "30s", "the broker refuses it"
    assert format_setting("visibility", 30_000) == "30s"
    assert format_setting("retain_max_bytes", 1 << 30) == "1GiB"
    assert format_setting("max_attempts", 30_000) == "30000"
