"""Checks the arguments of both clients' methods, one function for each kind, before anything is encoded or sent.

Contract: clients.md; ADR 0071. A wrong type is a TypeError, a wrong value is BadName or BadArgument; each names the argument,
the value and the remedy. A duration is given in ``Seconds``; the wire protocol has milliseconds.
"""

import inspect
import operator
import re
import reprlib
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from toymq.url import is_token
from toymq_py.consumer_options import LEASE_NUMBER_MAX, MODES, Mode, Start, parse_mode
from toymq_py.errors import BadArgument, BadName, ConfigError
from toymq_py.names import check_name, check_topic_or_pattern, is_incarnation
from toymq_py.protocol import publish_key
from toymq_py.protocol.frames import COUNT_MAX, is_key
from toymq_py.records import MSG_ID_MAX, PRODUCER_PREFIX, UNIX_MS_MAX, IdRange
from toymq_py.setting_units import DURATION_SETTINGS, MAY_BE_ZERO, SIZE_SETTINGS, parse_setting
from toymq_py.units import DURATION_MS_MAX, check_delay, parse_duration_ms

WORD_CHARS_MAX = 1024
"""Most characters of a client's name: it shares a header line with the token."""
Seconds = float | str
"""A duration: seconds, or a text with a unit, ``"500ms"``, ``"5s"``, ``"2m"``, ``"24h"``, ``"7d"``."""
LEASES = frozenset(("visibility", "nack_backoff_min", "nack_backoff_max"))
"""The settings that are some seconds or minutes long; the others are hours and days."""
DOUBTED_S = 5000
"""A number of at least so many seconds that is whole thousands and no whole hours is doubted: it may be milliseconds."""
_SETTING_NAME = re.compile(r"[a-z_]{1,64}\Z")
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 100


def shown(value: object) -> str:
    """Format a value for an error message: its repr, cut short. Never raises."""
    try:
        return _repr.repr(value)
    except Exception:  # noqa: BLE001 (a caller's own class)
        return f"a {type(value).__name__}"


# -- names and texts


def topic(value: object) -> str:
    """Check a topic name. Raises: TypeError, BadName."""
    return _name("topic", value, lambda text: check_name("topic", text))


def topic_or_pattern(value: object, what: str = "topic") -> str:
    """Check a topic name or pattern. Raises: TypeError, BadName."""
    return _name(what, value, check_topic_or_pattern)


def consumer(value: object) -> str:
    """Check a consumer name. Raises: TypeError, BadName."""
    return _name("consumer", value, lambda text: check_name("consumer", text))


def incarnation(value: object) -> str | None:
    """Check a topic's incarnation, the word in ``topic_range`` that is new whenever the topic is created. Raises: TypeError,
    BadArgument."""
    given = None if value is None else text("incarnation", value)
    if given is not None and not is_incarnation(given):
        raise BadArgument(f"incarnation is what topic_range returned, 16 hexadecimal digits, not {shown(value)}")
    return given


def _name(what: str, value: object, check: Callable[[str], str]) -> str:
    name = text(what, value)
    try:
        return check(name)
    except BadName as error:
        raise BadName(f"{error}; {what} is {shown(value)}") from None


def text(what: str, value: object) -> str:
    """Check that an argument is a str; ``what`` is its name in the error. Raises: TypeError."""
    if not isinstance(value, str):
        remedy = f": use {what}.decode()" if isinstance(value, bytes | bytearray) else ""
        raise TypeError(f"{what} is a str, not {shown(value)}{remedy}")
    return str.__str__(value)  # of an enum's member that is a str: its value


def word(what: str, value: object) -> str:
    """Check that an argument is one word of printable ASCII. Raises: TypeError, BadArgument."""
    found = text(what, value)
    if not is_token(found) or len(found) > WORD_CHARS_MAX:
        raise BadArgument(f"{what} is 1 to {WORD_CHARS_MAX} of printable ASCII without a space, not {shown(value)}")
    return found


# -- numbers


def whole(what: str, value: object, low: int, high: int, remedy: str = "") -> int:
    """Check that an argument is a whole number from ``low`` to ``high``. Raises: TypeError, BadArgument."""
    number = _whole(what, value, remedy)
    if not low <= number <= high:
        raise BadArgument(f"{what} is a whole number from {low} to {high}, not {shown(value)}")
    return number


def _whole(what: str, value: object, remedy: str) -> int:
    """Check that an argument is a whole number; ``remedy`` ends the error's text. Raises: TypeError."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{what} is a whole number, not {shown(value)}{remedy}")
    return number


def count(what: str, value: object) -> int:
    """Check that an argument is a positive whole number. Raises: TypeError, BadArgument."""
    return whole(what, value, 1, COUNT_MAX)


def lease(value: object) -> int | None:
    """Check the number of a lease, ``Message.lease``. Raises: TypeError, BadArgument."""
    return None if value is None else whole("lease", value, 1, LEASE_NUMBER_MAX)


def unix_ms(what: str, value: object) -> int | None:
    """Check a time in milliseconds since the Unix epoch; None stays None. Raises: TypeError, BadArgument."""
    return None if value is None else whole(what, value, 0, UNIX_MS_MAX, f": of a datetime, round({what}.timestamp() * 1000)")


def number_of_seconds(what: str, value: object) -> float:
    """Convert a duration to seconds; it is a number, perhaps inf or nan, or a text with a unit. Raises: TypeError,
    BadArgument."""
    if isinstance(value, str):
        return _text_ms(what, str.__str__(value)) / 1000
    if hasattr(value, "__float__") and not isinstance(value, bool):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
        except OverflowError:
            return float("inf")
    remedy = f"use {what}.total_seconds()" if hasattr(value, "total_seconds") else f"{what}=5 is five seconds"
    raise TypeError(f"{what} is a number of seconds or a text with a unit, not {shown(value)}: {remedy}")


def _text_ms(what: str, value: str) -> int:
    """Parse ``"500ms"``, ``"5s"``, ``"2m"``, ``"24h"`` or ``"7d"`` to milliseconds. A text without a unit is refused: a bare
    number is seconds in Python and milliseconds on the wire. Raises: BadArgument."""
    if value.isascii() and value.isdigit() and value.strip("0"):
        raise BadArgument(f"{what} needs a unit: write {value[:20]}s or {value[:20]}ms, not {shown(value)}")
    try:
        return parse_duration_ms(value)
    except ConfigError as error:
        raise BadArgument(f"{what}: {error}") from None


def duration_ms(what: str, value: object, low_ms: int = 0) -> int:
    """Convert a duration, at most ten years, to milliseconds. Raises: TypeError, BadArgument."""
    seconds = number_of_seconds(what, value)
    ms = round(seconds * 1000) if 0 <= seconds * 1000 <= DURATION_MS_MAX else -1
    if ms < low_ms:
        raise BadArgument(f"{what} is a duration in seconds, from {low_ms / 1000:g} to ten years, not {shown(value)}")
    return ms


def lease_ms(what: str, value: object) -> int:
    """Convert a visibility timeout or a backoff to milliseconds. Warns about a number that looks like milliseconds: thirty
    seconds are 30, while 30000 is more than eight hours. Raises: TypeError, BadArgument."""
    ms = duration_ms(what, value, 1)
    if not isinstance(value, str) and ms >= DOUBTED_S * 1000 and ms % 1_000_000 == 0 and ms % 3_600_000:
        seconds = ms // 1000
        text = f'{what} is {seconds} seconds, {seconds / 3600:.1f} hours: write "{seconds // 1000}s" or "{seconds}s"'
        warnings.warn(f"{text}; numbers are seconds", RuntimeWarning, stacklevel=3)
    return ms


def visibility(value: object) -> int | None:
    """Convert a visibility timeout to milliseconds; None means the topic's setting. Raises: TypeError, BadArgument."""
    return None if value is None else lease_ms("visibility", value)


def to_ms(what: str, value: object, low_ms: int = 0) -> int | None:
    """Convert a delay or another duration of at least ``low_ms`` to milliseconds; None stays None. Raises: TypeError,
    BadArgument."""
    return None if value is None else duration_ms(what, value, low_ms)


def publish_times(delay: object, ttl: object) -> tuple[int | None, int | None]:
    """Convert ``delay`` and ``ttl`` of a publish to milliseconds. Raises: TypeError, BadArgument, also when the delay is not
    below the ttl."""
    times = to_ms("delay", delay), to_ms("ttl", ttl, 1)
    check_delay(*times)
    return times


def timeout(what: str, value: object) -> float:
    """Check a time-out of the client itself, in seconds. A negative number is allowed: a deadline may be over. Raises:
    TypeError, BadArgument."""
    seconds = number_of_seconds(what, value)
    return duration_ms(what, value) / 1000 if not seconds < 0 else 0.0


# -- choices


def flag(what: str, value: object) -> bool:
    """Check that an argument is a bool. Raises: TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{what} is True or False, not {shown(value)}")
    return value


def mode(value: object, modes: tuple[Mode, ...] = MODES) -> Mode | None:
    """Check the mode of a subscription. Raises: TypeError, BadArgument."""
    return None if value is None else parse_mode(text("mode", value), modes)


def start(what: str, value: object) -> Start:
    """Check a start position: an id, as a number or a text, ``earliest``, ``latest`` or ``@<unix-ms>``. Raises: TypeError,
    BadArgument."""
    if isinstance(value, str):
        try:
            return Start.parse_checked(str.__str__(value))
        except BadArgument as error:
            raise BadArgument(f"{what}: {error}") from None
    try:
        return Start("id", whole(what, value, 0, MSG_ID_MAX))
    except TypeError:
        raise TypeError(f'{what} is "earliest", "latest", an id or "@<unix-ms>", not {shown(value)}') from None


def exceptions(what: str, value: object) -> None:
    """Check one exception class, or a tuple of them, as ``except`` takes it; each must be a subclass of ``Exception``. Raises:
    TypeError."""
    for kind in value if isinstance(value, tuple) else (value,):
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError(f"{what} is an exception's class or a tuple of them, (ValueError,) say, not {shown(value)}")
        if not (issubclass(kind, Exception) or issubclass(ExceptionGroup, kind)):  # BaseException is a base of both
            rule = "it ends a task or the program, and the message is delivered again"
            raise TypeError(f"{what} is for subclasses of Exception, not {kind.__qualname__}: {rule}")


def function(what: str, value: object, *, optional: bool = True) -> None:
    """Check that an argument is a plain function, not a coroutine function, or None if ``optional``. Raises: TypeError."""
    if not callable(value) and not (optional and value is None):
        raise TypeError(f"{what} is a function{' or None' if optional else ''}, not {shown(value)}")
    if any(map(inspect.iscoroutinefunction, (value, type(value).__call__))):
        raise TypeError(f"{what} is called and not awaited: write `def`, not `async def`; it may start a task")


def instance(what: str, value: object, kind: type, name: str) -> None:
    """Check that an argument is an instance of the class ``kind``, or None. Raises: TypeError."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{what} is {name} or None, not {shown(value)}")


# -- what is published


def payload_bytes(payload: object) -> bytes:
    """Convert a payload (bytes, bytearray, memoryview) to bytes. Raises: TypeError for anything else, with the remedy."""
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    if payload is None:
        raise TypeError('a payload is bytes, not None: use b"" for an empty one')
    remedy = "payload.encode()" if isinstance(payload, str) else 'pub_value(…, codec="json"), or json.dumps(payload).encode()'
    raise TypeError(f"a payload is bytes, not {type(payload).__name__}: use {remedy}")


def key_bytes(key: str | bytes) -> bytes:
    """Convert a message's key to bytes. Raises: BadArgument, TypeError."""
    if not isinstance(key, str | bytes):
        raise TypeError(f"a key is str or bytes, not {type(key).__name__}: use str(key)")
    data = key.encode(errors="surrogatepass") if isinstance(key, str) else key  # what passes is not printable
    if not data:
        raise BadArgument("invalid key: it is empty; leave the key out to publish without one")
    if data.startswith(PRODUCER_PREFIX):
        raise BadArgument(f"a key does not begin with {PRODUCER_PREFIX.decode()}: so do the names of producers")
    try:
        return publish_key(data)
    except BadArgument:
        rule = "write 1 to 512 printable ASCII characters without space; the key \"-\" alone is reserved"
        raise BadArgument(f"invalid key {shown(key)}: {rule}; leave the key out to publish without one") from None


def route_bytes(route: str | bytes) -> bytes:
    """Convert a route, by which the broker chooses a partition, to bytes. Raises: BadArgument, TypeError."""
    if not isinstance(route, str | bytes):
        raise TypeError(f"a route is str or bytes, not {type(route).__name__}: use str(route)")
    data = route.encode(errors="surrogatepass") if isinstance(route, str) else route
    if not is_key(data):
        rule = "write 1 to 512 printable ASCII characters without space"
        raise BadArgument(f"invalid route {shown(route)}: {rule}; leave the route out, and the key decides")
    return data


def headers(value: object) -> Mapping[str, str]:
    """Check a message's headers. Raises: TypeError; BadArgument for a header that a reader would parse differently."""
    if not isinstance(value, Mapping):
        raise TypeError(f"headers is a dict of str to str, not {shown(value)}")
    for name, one in value.items():
        if not isinstance(name, str) or not isinstance(one, str):
            raise TypeError(f"a header's name and value are str, not {shown(name)}: {shown(one)}; use str()")
        if not name or ":" in name or "\n" in name or "\n" in one:
            rule = "a name has no colon and is not empty, and neither name nor value has a line break"
            raise BadArgument(f"invalid header {shown(name)}: {shown(one)}: {rule}")
    return value


def items(value: Any) -> Iterable[Any]:
    """Check the argument ``items`` of ``pub_many``. Raises: TypeError."""
    if isinstance(value, str | bytes | bytearray | memoryview) or not isinstance(value, Iterable):
        remedy = f": use [{shown(value)}]" if isinstance(value, bytes) else ""
        if hasattr(value, "__aiter__"):
            remedy = ": publish each with pub, or collect them in a list"
        form = "items is an iterable of payloads, (key, payload), (key, payload, headers) or Sequenced"
        raise TypeError(f"{form}, not {shown(value)}{remedy}")
    return value


# -- what is settled


def ids(what: str, value: object) -> tuple[IdRange, ...]:
    """Check ranges (first, last) of message ids: ascending and without overlap. Raises: TypeError, BadArgument."""
    form = f"{what} is a list of ranges (first, last), [(7, 7)] for a single id"
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise TypeError(f"{form}, not {shown(value)}")
    found: list[IdRange] = []
    below = -1
    for each in value:
        if not isinstance(each, tuple | list) or len(each) != 2:
            raise TypeError(f"{form}, not of {shown(each)}")
        first, last = (whole(f"an id of {what}", end, 0, MSG_ID_MAX) for end in each)
        if first <= below or last < first:
            raise BadArgument(f"{what} ascend and do not overlap, [(3, 9), (12, 12)] say; {shown(each)} does not")
        found.append((first, last))
        below = last
    return tuple(found)


def why(reason: object, error: object) -> tuple[str | None, BaseException | None]:
    """Return the text and the exception of a NACK's ``reason`` and ``error``. An exception given as ``reason`` counts as
    ``error``. Raises: TypeError."""
    if isinstance(reason, BaseException) and error is None:
        return None, reason
    if error is not None and not isinstance(error, BaseException):
        raise TypeError(f"error is an exception, not {shown(error)}: say a text as reason")
    if reason is not None and not isinstance(reason, str):
        remedy = ": use reason.decode()" if isinstance(reason, bytes) else ""
        raise TypeError(f"reason is a str, or an exception without error, not {shown(reason)}{remedy}")
    return reason, error


# -- settings of a topic


def settings(value: object, label: Callable[[str], str] = "settings[{!r}]".format) -> dict[str, str]:
    """Convert a topic's settings, by name, to the texts that the wire has. A number is seconds, bytes or a count; a text has
    its unit (``"2m"``, ``"64MiB"``) or is ``"default"``. Only the broker checks which settings exist.

    Args:
        label: makes the name of a setting in an error's text.

    Raises: TypeError, BadArgument.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f'settings is a dict, {{"visibility": 60}} say, not {shown(value)}')
    return {_setting_name(name): _setting(label(name), name, one) for name, one in value.items()}


def _setting_name(name: object) -> str:
    found = text("a name in settings", name)
    if not _SETTING_NAME.match(found):
        raise BadArgument(f"a name in settings is a word of small letters and _, not {shown(name)}")
    return found


def _setting(what: str, name: str, value: object) -> str:
    if isinstance(value, str):
        if name in DURATION_SETTINGS and value != "default":
            ms = _text_ms(what, str.__str__(value))
            if not ms and name not in MAY_BE_ZERO:  # the broker would say so in milliseconds, which a text here is not
                raise BadArgument(f"{what} is a duration from 1ms to ten years, not {shown(value)}: write 30s or 2m")
            return str(ms)
        try:
            return word(what, parse_setting(name, str.__str__(value)))
        except ConfigError as error:
            raise BadArgument(f"{what}: {error}") from None
    if name in DURATION_SETTINGS:
        return str(lease_ms(what, value) if name in LEASES else duration_ms(what, value, 0 if name in MAY_BE_ZERO else 1))
    unit = "bytes, or a str with a unit" if name in SIZE_SETTINGS else 'a number, or "default"'
    return str(_whole(what, value, f": it is {unit}"))  # its limits are the broker's


def settings_in_seconds(found: Mapping[str, object]) -> dict[str, object]:
    """Convert the settings in a reply of the broker, whose durations are milliseconds, to durations in seconds."""
    return {name: _seconds(value) if name in DURATION_SETTINGS else value for name, value in found.items()}


def _seconds(value: object) -> object:
    if not isinstance(value, int):
        return value
    return value // 1000 if value % 1000 == 0 else value / 1000
