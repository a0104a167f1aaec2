"""Operations of the API with their parameters, bodies and answers: one table that is served, checked and documented.

Contract: gateway.md. ``openapi.py`` describes the table and ``app.py`` serves it, so the two cannot differ.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.errors import BadArgument, BadName, ConfigError, RequestError
from toymq_py.gateway.problems import problem
from toymq_py.gateway.request_context import Gateway
from toymq_py.names import NAME_BYTES_MAX, check_name, check_topic_or_pattern
from toymq_py.records import KEY_BYTES_MAX, MSG_ID_MAX
from toymq_py.units import DURATION_MS_MAX, parse_number

T = TypeVar("T")
Schema = Mapping[str, Any]
"""A JSON schema, as in OpenAPI 3.1."""
Need = Literal["publish", "subscribe", "describe", "admin", "see"]
"""The right that a token must have (clients.md, auth file): publish, subscribe or describe for the path's topic; "see" is any
token, and the answer has what that token may describe."""


@dataclass(frozen=True)
class Parameter(Generic[T]):
    """One value of the path, the query or a header.

    Attributes:
        parse: converts the text to a value. Raises: RequestError.
    """

    name: str
    where: Literal["path", "query", "header"]
    text: str
    schema: Schema
    parse: Callable[[str], T]
    required: bool = False

    def of(self, request: Request) -> T | None:
        """The value of this parameter in a request; None when it is absent. Raises: RequestError."""
        if self.where == "path":
            found: str | None = request.path_params[self.name]
        elif self.where == "query":
            found = request.query_params.get(self.name)
        else:
            values = request.headers.getlist(self.name)
            if len(values) > 1:
                raise BadArgument(f"header {self.name} is given more than once")
            found = values[0] if values else None
        if found is None:
            if self.required:
                raise BadArgument(f"{self.where} parameter {self.name} is missing")
            return None
        return self.parse(found)

    def need(self, request: Request) -> T:
        """The value of a parameter that is required. Raises: RequestError."""
        value = self.of(request)
        if value is None:
            raise BadArgument(f"{self.where} parameter {self.name} is missing")
        return value

    def or_(self, default: T, request: Request) -> T:
        """The value, or a default. Raises: RequestError."""
        value = self.of(request)
        return default if value is None else value


@dataclass(frozen=True)
class Body:
    """The documented body of a request, by media type."""

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
        safe: the operation changes nothing. Pages of other sites may call only safe operations (ADR 0024).
        errors: what it may raise in addition to ``openapi.COMMON_ERRORS``.
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
    """Makes the response to an error; a dialect has its own."""
    refusals: tuple[str, ...] = ("application/problem+json",)
    """Media types of those responses."""
    topic: Parameter[str] | None = None
    """The parameter with the topic that the token needs rights for; by default the path's ``topic``."""
    makes_topic: bool = False
    """Whether it creates a topic: the audit trail records the topic instead of the request."""
    brief: bool = False
    """Whether it waits, as a rule, for its body and for the disk only: it is carried out without a task (``steps.py``)."""

    @property
    def changes(self) -> bool:
        """Whether the operation needs the admin right and is not a GET; then the audit trail records it."""
        return self.needs == "admin" and self.method != "GET"


# -- parsers of parameters


def whole(name: str, low: int, high: int) -> Callable[[str], int]:
    """A parser of whole numbers from ``low`` to ``high``, which raises BadArgument."""

    def parse(text: str) -> int:
        return parse_number(name, text, low, high)

    return parse


def count(name: str, text: str, low: int, high: int, *, default: int | None = None) -> Parameter[int]:
    """A query parameter that is a whole number."""
    schema: dict[str, Any] = {"type": "integer", "minimum": low, "maximum": high}
    if default is not None:
        schema["default"] = default
    return Parameter(name, "query", text, schema, whole(name, low, high))


def flag(name: str, text: str, *, default: bool | None = None) -> Parameter[bool]:
    """A query parameter that is true or false."""

    def parse(found: str) -> bool:
        if found not in ("true", "false"):
            raise BadArgument(f"invalid {name} {found[:50]!a}: write true or false")
        return found == "true"

    schema: dict[str, Any] = {"type": "boolean"}
    if default is not None:
        schema["default"] = default
    return Parameter(name, "query", text, schema, parse)


def seconds(name: str, text: str, low: float, high: float, *, default: float | None = None) -> Parameter[float]:
    """A query parameter in seconds, with up to three decimals."""

    def parse(found: str) -> float:
        digits, _, decimals = found.partition(".")
        if (
            not (digits + decimals).isascii() or not digits.isdigit() or len(digits) > 12
            or (decimals and not decimals.isdigit()) or len(decimals) > 3 or found.endswith(".")
            or not low <= float(found) <= high
        ):  # fmt: skip
            raise BadArgument(f"invalid {name} {found[:50]!a}: write seconds from {low:g} to {high:g}, such as 1.5")
        return float(found)

    schema: dict[str, Any] = {"type": "number", "minimum": low, "maximum": high}
    if default is not None:
        schema["default"] = default
    return Parameter(name, "query", text, schema, parse)


def _milliseconds(name: str, text: str, low: int) -> Parameter[int]:
    schema = {"type": "integer", "minimum": low, "maximum": DURATION_MS_MAX}
    return Parameter(name, "header", text, schema, whole(name, low, DURATION_MS_MAX))


def check_key(key: str) -> bytes:
    """Check a dedupe key, and encode it as it is stored. Raises: BadArgument."""
    if not (0 < len(key) <= KEY_BYTES_MAX and key.isascii() and key.isprintable() and " " not in key) or key == "-":
        raise BadArgument(f"invalid key {key[:50]!a}: write 1 to {KEY_BYTES_MAX} printable ASCII characters, no space, not -")
    return key.encode()


def check_route(route: str) -> bytes:
    """Check and encode a route: the text by which a partition is chosen. Raises: BadArgument."""
    if not (0 < len(route) <= KEY_BYTES_MAX and route.isascii() and route.isprintable() and " " not in route):
        raise BadArgument(f"invalid route {route[:50]!a}: write 1 to {KEY_BYTES_MAX} printable ASCII characters, no space")
    return route.encode()


def _name_schema(wild: str = "", end: str = "") -> Schema:
    longest = NAME_BYTES_MAX + (len("#1023.dlq") if end else 0)
    return {"type": "string", "pattern": f"^[A-Za-z0-9_{wild}][A-Za-z0-9._{wild}-]*{end}$", "maxLength": longest}


_OF_PARTITION = r"(#[0-9]{1,4}(\.dlq)?)?"
_OF_PARTITIONS = r"(#([0-9]{1,4}|\*)(\.dlq)?)?"
NAME_SHOWN_MAX = 100
"""Most characters of an invalid name in an error."""


def _named(what: str, check: Callable[[str], str]) -> Callable[[str], str]:
    """Wrap a check of names so that its error quotes the name."""

    def checked(name: str) -> str:
        try:
            return check(name)
        except BadName as error:
            raise BadName(f"{error}; {what} is {name[:NAME_SHOWN_MAX]!a}") from None

    return checked


_TOPIC = _named("topic", lambda name: check_name("topic", name))
_CONSUMER = _named("consumer", lambda name: check_name("consumer", name))
TOPIC = Parameter(
    "topic", "path", "Name of the topic; `#` of a partition is written `%23`.", _name_schema(end=_OF_PARTITION), _TOPIC,
    required=True,
)  # fmt: skip
PATTERN_OR_TOPIC = Parameter(
    "topic", "path", "Name of a topic, or a pattern: `events.*`, `events.>`, `orders#*`; `#` is written `%23`.",
    _name_schema("*>", _OF_PARTITIONS), _named("topic", check_topic_or_pattern), required=True,
)  # fmt: skip
PATTERN = Parameter(
    "pattern", "query", "Name or pattern: `events.*`, `events.>`, `orders#*`; `#` is written `%23`.",
    _name_schema("*>", _OF_PARTITIONS), _named("pattern", check_topic_or_pattern),
)  # fmt: skip
CONSUMER_OF_PATH = Parameter("consumer", "path", "Name of the consumer.", _name_schema(), _CONSUMER, required=True)
CONSUMER = Parameter("consumer", "query", "Name of the consumer.", _name_schema(), _CONSUMER, required=True)
MESSAGE_ID = Parameter(
    "id", "path", "Number of the message in its topic.", {"type": "integer", "minimum": 0, "maximum": MSG_ID_MAX},
    whole("id", 0, MSG_ID_MAX), required=True,
)  # fmt: skip
IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key", "header",
    "A publish with a key that the topic remembers appends nothing and answers the first one's id.",
    {"type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX, "pattern": "^[!-~]+$"}, check_key,
)  # fmt: skip
ROUTE = Parameter(
    "X-Route", "header",
    "Chooses the partition of a partitioned topic; default: the header `toymq-group`, else the key, else the next in turn.",
    {"type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX, "pattern": "^[!-~]+$"}, lambda route: check_route(route),
)  # fmt: skip
DELAY_MS = _milliseconds("X-Delay-Ms", "Deliver after so many milliseconds.", 0)
TTL_MS = _milliseconds("X-Ttl-Ms", "Drop the message when it is not delivered so many milliseconds after its publish.", 1)


def quantity(parse: Callable[[str], int], text: str) -> int:
    """Parse a duration or a size with its unit. Raises: BadArgument."""
    try:
        return parse(text)
    except ConfigError as error:
        raise BadArgument(str(error)) from None
TESTED = {"type": "object", "required": ["name", "failure"], "properties": {
    "name": {"type": "string"},
    "failure": {"type": ["string", "null"], "description": "Why it was not taken, null when it was."}}}  # fmt: skip
"""The answer of an operation that sends a test message to the target of notices or messages."""
