"""The settings of a topic: how they are written, and which are in force.

Contract: delivery.md, "Per-topic settings". A setting is a field here and a row of ``setting_units.SETTINGS``: the TCP
protocol, HTTP, ``toymqctl``, definitions and ``topic.json`` take settings from there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from toymq_py.config.option_schema import options_of, shown_key
from toymq_py.config.options import BrokerOptions
from toymq_py.errors import BadArgument
from toymq_py.names import is_dead_letters
from toymq_py.setting_units import DURATION_SETTINGS, SETTINGS, SIZE_SETTINGS, WhenFull, format_setting
from toymq_py.units import parse_number, span


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """One topic's settings: integers (milliseconds, bytes, counts) and words. None means the broker's default.

    ``SETTINGS`` has their limits. Contract: delivery.md, "Per-topic settings".
    """

    visibility: int | None = None
    max_attempts: int | None = None
    """Failed attempts after which a message is a dead letter; 0: never."""
    nack_backoff_min: int | None = None
    nack_backoff_max: int | None = None
    dedupe_keys: int | None = None
    backlog_max_messages: int | None = None
    """The most messages of the backlog; None: no limit. The same holds for the next setting, and for the limits of
    retention."""
    backlog_max_bytes: int | None = None
    when_full: WhenFull | None = None
    """The effect of a full backlog; None: ``reject``."""
    retain_acked_for: int | None = None
    retain_max_age: int | None = None
    retain_max_bytes: int | None = None
    ttl: int | None = None
    """Milliseconds; None: messages that bring no ttl of their own never expire."""
    tier_local_bytes: int | None = None
    """Bytes that stay on the disk; None: all, also of what is in the bucket of ``--tier``. The same holds for the next
    setting."""
    tier_local_age: int | None = None

    def changed(self, changes: Mapping[str, str]) -> "TopicSettings":
        """A copy with some settings changed; ``default`` unsets one.

        Raises: BadArgument for a name that is not a setting, or a value out of its range.
        """
        values: dict[str, Any] = {name: _parse_setting(name, text) for name, text in changes.items()}
        changed = replace(self, **values)
        low, high = changed.nack_backoff_min, changed.nack_backoff_max
        if low is not None and high is not None and low > high:
            raise BadArgument("nack_backoff_min is above nack_backoff_max")
        return changed

    def differences(self, other: "TopicSettings") -> str:
        """The settings that differ between ``self`` and ``other``, with the values of both, as text for an error."""
        pairs = ((f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return ", ".join(f"{name}={_shown(name, ours)}, not {_shown(name, its)}" for name, ours, its in pairs if ours != its)

    def value(self, topic: str, name: str, options: BrokerOptions) -> int:
        """The effective value of a setting, in milliseconds, bytes or a count: the one that the topic must have, its own, or
        the broker's default."""
        for value in (fixed_value(topic, name), getattr(self, name)):
            if value is not None:
                return int(value)
        return int(getattr(options, OPTIONS[name]))

    def to_json(self) -> dict[str, int | str]:
        """The settings that are set, without defaults."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "TopicSettings":
        """Parse settings. Raises: BadArgument."""
        return cls().changed({name: str(value) for name, value in found.items()})


OPTIONS = {each.name: each.attribute for each in options_of(BrokerOptions) if each.name in SETTINGS}
"""The broker's options that are defaults of settings, as attributes of ``BrokerOptions``."""


def _shown(name: str, value: object) -> str:
    return "default" if value is None else format_setting(name, value)


def _parse_setting(name: str, text: str) -> int | str | None:
    limits = SETTINGS.get(name)
    if limits is None:
        raise BadArgument(f"{shown_key(name)} is not a topic setting; there are {', '.join(SETTINGS)}")
    if text == "default":
        return None
    low, high = limits[0], limits[-1]
    if isinstance(low, str) or isinstance(high, str):
        if text not in limits:
            raise BadArgument(f"invalid {name} {text[:50]!a}: write {', '.join(map(str, limits))} or default")
        return text
    try:
        return parse_number(name, text, low, high)
    except BadArgument:
        unit = " of milliseconds" if name in DURATION_SETTINGS else " of bytes" if name in SIZE_SETTINGS else ""
        text = f"invalid {name} {text[:50]!a}: write a whole number{unit} from {span(low, high)}, or default"
        raise BadArgument(text) from None


def fixed_value(topic: str, name: str) -> int | None:
    """The value that a setting always has for a topic; None: the topic may have its own. A dead letter never becomes one
    again."""
    return 0 if name == "max_attempts" and is_dead_letters(topic) else None


def check_dead_letter_settings(name: str, changes: Mapping[str, str]) -> None:
    """Refuse settings that have no effect on a dead-letter topic. Raises: BadArgument."""
    if "max_attempts" in changes and fixed_value(name, "max_attempts") is not None:
        raise BadArgument("max_attempts has no effect here: dead letters have no dead-letter topic of their own")
    if is_dead_letters(name) and "ttl" in changes:
        raise BadArgument("ttl has no effect here: dead letters do not expire; retain_max_age removes old ones")
