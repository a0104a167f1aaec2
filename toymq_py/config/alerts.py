"""Alert rules: a condition on topics or on the disk, how long it must hold, and where its notices go. Pure.

Contract: gateway.md; ADR 0149. The gateway evaluates the rules and sends notices; ``alerts_file.py`` stores the rules.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from toymq_py.config.webhooks import SIGNED, TIMEOUT_MS_MAX, Target, check_new_secret, secret_bytes
from toymq_py.errors import BadArgument, ConfigError
from toymq_py.names import DEAD_LETTERS, check_name, check_topic_or_pattern, is_dead_letters
from toymq_py.units import (
    DURATION_MS_MAX,
    check_number,
    counted,
    duration_doubt,
    format_duration,
    parse_duration_ms,
    parse_number,
    parse_size,
    rounded_size,
)

Condition = Literal["lag", "age", "retrying", "letters", "unattached", "disk"]
CONDITIONS: tuple[Condition, ...] = get_args(Condition)
UNITS: dict[Condition, str] = {
    "lag": "messages", "age": "ms", "retrying": "messages", "letters": "messages", "unattached": "messages", "disk": "bytes",
}  # fmt: skip
"""The unit of a threshold, by condition."""
DEFAULT_THRESHOLDS: dict[Condition, int] = {"letters": 1, "unattached": 1}
ALERTS_MAX = 100
"""Most alert rules: each is evaluated for every topic."""
THRESHOLD_MAX = 2**53 - 1
"""The largest threshold: JSON numbers are exact up to this."""
FOR_MS = 60_000
REPEAT_MS = 4 * 3600 * 1000
REPEAT_MIN_MS = 60_000
CLEAR_SHARE = 0.8
"""A rule without ``clear`` is resolved at this share of its threshold, so that a value around it does not flap."""

_KINDS: dict[str, tuple[type, ...]] = {
    "when": (str,), "topic": (str, type(None)), "threshold": (int, str), "clear": (int, str, type(None)), "for_ms": (int, str),
    "repeat_ms": (int, str), "url": (str, type(None)), "secret": (str, type(None)), "timeout_ms": (int, str),
    "to": (str, type(None)),
}  # fmt: skip
"""Members of a definition and the types of their values; a text is a quantity with its unit."""
_REMEDY = f"an alert has when ({', '.join(CONDITIONS)}), topic, threshold, clear, for, repeat, and url (secret, timeout) or to"
WITHOUT_MS = {"for": "for_ms", "repeat": "repeat_ms", "timeout": "timeout_ms"}
"""Members that may be written with a unit: ``"for": "5m"``."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule. It fires when a value has stayed at ``threshold`` for ``for_ms``, and is resolved when it is back at ``clear``.

    Attributes:
        topic: name or pattern; None for ``disk``.
        threshold: in the unit of ``UNITS``. A rule on the disk fires at this value and below, others at it and above.
        repeat_ms: the interval at which the notice is repeated while the rule fires; 0: never.
        url, secret, timeout_ms: where notices are posted. A rule has either ``url`` or ``to``, a topic for its notices.
    """

    when: Condition
    topic: str | None
    threshold: int
    clear: int
    for_ms: int = FOR_MS
    repeat_ms: int = REPEAT_MS
    url: str | None = None
    secret: str | None = None
    timeout_ms: int = 10_000
    to: str | None = None

    def __post_init__(self) -> None:
        """Check the fields. Raises: BadArgument, BadName."""
        if self.when not in CONDITIONS:
            raise BadArgument(f"invalid when {str(self.when)[:50]!a}: write {', '.join(CONDITIONS)}")
        if self.when == "disk":
            if self.topic is not None:
                raise BadArgument("an alert on the disk has no topic: leave it out")
        elif self.topic is None:
            raise BadArgument(f"an alert on {self.when} needs a topic, or a pattern: > is every topic")
        else:
            check_topic_or_pattern(self.topic)
        if self.when == "letters" and self.topic is not None and is_dead_letters(self.topic):
            raise BadArgument(f"letters counts those of a topic: write {self.topic.removesuffix(DEAD_LETTERS)}")
        check_number("threshold", self.threshold, 1, THRESHOLD_MAX)
        check_number("clear", self.clear, 0, THRESHOLD_MAX)
        if self.fires_below and self.clear <= self.threshold:
            raise BadArgument(f"clear is {self.clear} and must be above the threshold, {self.threshold}: else it would flap")
        if not self.fires_below and self.clear >= self.threshold:
            raise BadArgument(f"clear is {self.clear} and must be below the threshold, {self.threshold}: else it would flap")
        check_number("for_ms", self.for_ms, 0, DURATION_MS_MAX)
        check_number("repeat_ms", self.repeat_ms, 0, DURATION_MS_MAX)
        if 0 < self.repeat_ms < REPEAT_MIN_MS:
            raise BadArgument(f"repeat is {format_duration(self.repeat_ms)}: write 1m or more, or 0 for never")
        check_number("timeout_ms", self.timeout_ms, 1, TIMEOUT_MS_MAX)
        self._check_target()

    def _check_target(self) -> None:
        if (self.url is None) == (self.to is None):
            raise BadArgument("an alert goes to a url or to a topic (to): name one of them, and make two rules for both")
        if self.url is not None:
            Target.parse(self.url)
            if self.secret is not None:
                secret_bytes(self.secret)
        elif self.to is not None:
            if self.secret is not None:
                raise BadArgument("secret signs what is posted to a url: an alert that is written to a topic has none")
            if is_dead_letters(check_name("topic", self.to)):
                raise BadArgument(f"{self.to} holds dead letters, which the broker alone writes: write to another topic")

    @property
    def fires_below(self) -> bool:
        """Whether the rule fires at low values instead of high ones."""
        return self.when == "disk"

    @property
    def unit(self) -> str:
        """The unit of the values: ``messages``, ``ms`` or ``bytes``."""
        return UNITS[self.when]

    def reached(self, value: int) -> bool:
        """Whether a value has reached the threshold."""
        return value <= self.threshold if self.fires_below else value >= self.threshold

    def cleared(self, value: int) -> bool:
        """Whether a value is back at ``clear``, which resolves the alert."""
        return value >= self.clear if self.fires_below else value <= self.clear

    def shown(self, value: int) -> str:
        """A value for people: ``1200 messages``, ``5m``, ``10GiB``."""
        if self.unit == "bytes":
            return rounded_size(value)
        if self.unit == "ms":
            return format_duration(value if value < 1000 else value // 1000 * 1000)
        return counted(value, "message")

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Alert":
        """Parse the JSON object of a rule. Raises: BadArgument, BadName."""
        found = {WITHOUT_MS.get(name, name): value for name, value in found.items()}
        for name, value in found.items():
            if name not in _KINDS or type(value) not in _KINDS[name]:
                raise BadArgument(f"{name[:100]!a} is wrong: {_REMEDY}")
        if "when" not in found:
            raise BadArgument(f"when is missing: {_REMEDY}")
        when = found["when"]
        if when not in CONDITIONS:
            raise BadArgument(f"invalid when {when[:50]!a}: write {', '.join(CONDITIONS)}")
        values = {"topic": None, **found}
        for name in ("for_ms", "repeat_ms", "timeout_ms"):
            if isinstance(value := values.get(name), str):
                values[name] = _duration_ms(name.removesuffix("_ms"), value)
        threshold = values.get("threshold", DEFAULT_THRESHOLDS.get(when))
        if threshold is None:
            raise BadArgument(f"threshold is missing: an alert on {when} fires at so many {UNITS[when]}")
        values["threshold"] = _quantity(when, "threshold", threshold)
        clear = values.get("clear")
        values["clear"] = _default_clear(when, values["threshold"]) if clear is None else _quantity(when, "clear", clear)
        return cls(**values)

    def check_secret(self) -> "Alert":
        """Check the signing secret of a new rule; stored rules are not checked. Returns: the rule. Raises: BadArgument."""
        check_new_secret(self.secret)
        return self

    def public(self) -> dict[str, Any]:
        """The fields to show: ``signed`` in place of the secret."""
        return {**asdict(self), "unit": self.unit, "secret": None if self.secret is None else SIGNED}


def _default_clear(when: Condition, threshold: int) -> int:
    if when == "disk":
        return threshold + max(round(min(threshold, THRESHOLD_MAX) * (1 - CLEAR_SHARE)), 1)
    return min(int(min(threshold, THRESHOLD_MAX) * CLEAR_SHARE), threshold - 1)  # a larger one is refused afterwards


def _quantity(when: Condition, name: str, value: int | str) -> int:
    """Parse a threshold to the unit of its condition. Raises: BadArgument."""
    if isinstance(value, int):
        return value
    try:
        if UNITS[when] == "ms":
            return _duration_ms(name, value)
        if UNITS[when] == "bytes":
            if value.isdigit():
                raise BadArgument(f"invalid {name} {value[:50]!a}: write its unit, {value[:20]}GiB say")
            return parse_size(value)
    except ConfigError as error:
        raise BadArgument(f"{name}: {error}") from None
    return parse_number(name, value, 0, THRESHOLD_MAX)


def _duration_ms(name: str, text: str) -> int:
    """Parse a duration to milliseconds. Raises: BadArgument."""
    if text != "0" and text.isdigit():
        raise BadArgument(f"invalid {name} {text[:50]!a}: {duration_doubt(text) or f'write its unit, {text[:20]}s say'}")
    try:
        return parse_duration_ms(text)
    except ConfigError as error:
        raise BadArgument(f"{name}: {error}") from None
