"""What the API is made of: operations, their parameters and bodies, in one table that serves, checks and documents them.

Contract: gateway.md. ``openapi.py`` describes what is here, ``app.py`` serves it, so the two cannot differ.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.errors import BadArgument, ConfigError, RequestError
from toymq_py.gateway.problems import problem
from toymq_py.gateway.request_context import Gateway
from toymq_py.model import (
    DURATION_MS_MAX,
    KEY_BYTES_MAX,
    MSG_ID_MAX,
    NAME_BYTES_MAX,
    check_name,
    check_topic_or_pattern,
)

T = TypeVar("T")
Schema = Mapping[str, Any]
"""A JSON schema, as OpenAPI 3.1 has them."""
Need = Literal["publish", "subscribe", "describe", "admin", "see"]
"""What a token must allow (clients.md, auth file): publish, subscribe, describe for the topic of the path; "see" is any token,
which is shown what it may see."""


@dataclass(frozen=True)
class Parameter(Generic[T]):
    """One value of the path, the query or a header.

    Attributes:
        parse: text to value. Raises: RequestError.
        default: without it, the value is None; a path has no default.
    """

    name: str
    where: Literal["path", "query", "header"]
    text: str
    schema: Schema
    parse: Callable[[str], T]
    required: bool = False

    def of(self, request: Request) -> T | None:
        """The value of this request, None when it is not there. Raises: RequestError."""
        if self.where == "path":
            found: str | None = request.path_params[self.name]
        elif self.where == "query":
            found = request.query_params.get(self.name)
        else:
            values = request.headers.getlist(self.name)
            if len(values) > 1:
                raise BadArgument(f"{self.name} stands more than once")
            found = values[0] if values else None
        if found is None:
            if self.required:
                raise BadArgument(f"{self.name} is missing")
            return None
        return self.parse(found)

    def need(self, request: Request) -> T:
        """The value of a parameter that must be there. Raises: RequestError."""
        value = self.of(request)
        if value is None:
            raise BadArgument(f"{self.name} is missing")
        return value

    def or_(self, default: T, request: Request) -> T:
        """The value, or a default. Raises: RequestError."""
        value = self.of(request)
        return default if value is None else value


@dataclass(frozen=True)
class Body:
    """What a request carries, by media type."""

    text: str
    content: Mapping[str, Schema]


@dataclass(frozen=True)
class Answer:
    """One documented response."""

    text: str
    schema: Schema | None = None
    media: str = "application/json"


Handler = Callable[[Gateway, Request], Awaitable[Response]]


@dataclass(frozen=True)
class Operation:
    """One method of one path.

    Attributes:
        safe: it changes nothing. Browsers of other sites may not call the others (ADR 0024).
        errors: what it may refuse with, beside what every operation may (``openapi.COMMON_ERRORS``).
    """

    method: str
    path: str
    name: str
    text: str
    handler: Handler
    needs: Need | None
    parameters: tuple[Parameter[Any], ...] = ()
    body: Body | None = None
    answers: Mapping[int, Answer] | None = None
    errors: tuple[type[RequestError], ...] = ()
    safe: bool = False
    refuse: Callable[[RequestError], Response] = problem
    """How it says no; dialects have their own words."""
    refusals: tuple[str, ...] = ("application/problem+json",)
    """Media types of those words."""
    topic: Parameter[str] | None = None
    """Where the topic is that the token must allow; by default ``topic`` of the path."""
    makes_topic: bool = False
    """Its act is to make a topic: where one is made, that has the line in the audit trail."""

    @property
    def changes(self) -> bool:
        """An admin's, and no look: it has a line in the audit trail."""
        return self.needs == "admin" and self.method != "GET"


# -- parsers of parameters


def whole(name: str, low: int, high: int) -> Callable[[str], int]:
    """A parser of whole numbers from ``low`` to ``high``. It raises BadArgument."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 20 and low <= int(text) <= high):
            raise BadArgument(f"{name} is a whole number from {low} to {high}")
        return int(text)

    return parse


def count(name: str, text: str, low: int, high: int, *, default: int | None = None) -> Parameter[int]:
    """A whole number of the query."""
    schema: dict[str, Any] = {"type": "integer", "minimum": low, "maximum": high}
    if default is not None:
        schema["default"] = default
    return Parameter(name, "query", text, schema, whole(name, low, high))


def seconds(name: str, text: str, low: float, high: float, *, default: float | None = None) -> Parameter[float]:
    """Seconds of the query, with up to three decimals."""

    def parse(found: str) -> float:
        digits, _, decimals = found.partition(".")
        if (
            not (digits + decimals).isascii() or not digits.isdigit() or len(digits) > 12
            or (decimals and not decimals.isdigit()) or len(decimals) > 3 or found.endswith(".")
            or not low <= float(found) <= high
        ):  # fmt: skip
            raise BadArgument(f"{name} is seconds from {low:g} to {high:g}, 1.5 say")
        return float(found)

    schema: dict[str, Any] = {"type": "number", "minimum": low, "maximum": high}
    if default is not None:
        schema["default"] = default
    return Parameter(name, "query", text, schema, parse)


def _milliseconds(name: str, text: str, low: int) -> Parameter[int]:
    schema = {"type": "integer", "minimum": low, "maximum": DURATION_MS_MAX}
    return Parameter(name, "header", text, schema, whole(name, low, DURATION_MS_MAX))


def check_key(key: str) -> bytes:
    """A dedupe key as the log has it. Raises: BadArgument."""
    if not (0 < len(key) <= KEY_BYTES_MAX and key.isascii() and key.isprintable() and " " not in key) or key == "-":
        raise BadArgument(f"a key is 1 to {KEY_BYTES_MAX} printable ASCII characters without space, and not -")
    return key.encode()


def _name_schema(more: str = "") -> Schema:
    return {"type": "string", "pattern": f"^[A-Za-z0-9_{more}][A-Za-z0-9._{more}-]*$", "maxLength": NAME_BYTES_MAX}


TOPIC = Parameter("topic", "path", "Name of the topic.", _name_schema(), lambda name: check_name("topic", name), required=True)
PATTERN_OR_TOPIC = Parameter(
    "topic", "path", "Name of a topic, or a pattern: `events.*`, `events.>`.", _name_schema("*>"), check_topic_or_pattern,
    required=True,
)  # fmt: skip
PATTERN = Parameter("pattern", "query", "Name or pattern: `events.*`, `events.>`.", _name_schema("*>"), check_topic_or_pattern)
CONSUMER_OF_PATH = Parameter(
    "consumer", "path", "Name of the consumer.", _name_schema(), lambda name: check_name("consumer", name), required=True
)
CONSUMER = Parameter(
    "consumer", "query", "Name of the consumer.", _name_schema(), lambda name: check_name("consumer", name), required=True
)
MESSAGE_ID = Parameter(
    "id", "path", "Number of the message in its topic.", {"type": "integer", "minimum": 0, "maximum": MSG_ID_MAX},
    whole("id", 0, MSG_ID_MAX), required=True,
)  # fmt: skip
IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key", "header",
    "A publish with a key that the topic remembers appends nothing and answers the first one's id.",
    {"type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX, "pattern": "^[!-~]+$"}, check_key,
)  # fmt: skip
DELAY_MS = _milliseconds("X-Delay-Ms", "Deliver after so many milliseconds.", 0)
TTL_MS = _milliseconds("X-Ttl-Ms", "Drop what was not acked after so many milliseconds.", 1)


def quantity(parse: Callable[[str], int], text: str) -> int:
    """A duration or a size with its unit. Raises: BadArgument."""
    try:
        return parse(text)
    except ConfigError as error:
        raise BadArgument(str(error)) from None
