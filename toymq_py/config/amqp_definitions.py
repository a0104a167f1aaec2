"""AMQP exchanges, queues and bindings in a definitions file (docs/amqp.md).

    [[exchange]]
    name = "orders"
    type = "topic"
    arguments = {alternate-exchange = "unrouted"}

    [[queue]]
    name = "mails"
    arguments = {x-message-ttl = 60000}

    [[binding]]
    source = "orders"
    queue = "mails"             # or: exchange = "..."
    routing_key = "orders.*"

Each may have a ``vhost``, by default ``/``. A file has only what outlives a restart: durable exchanges, queues that are not
exclusive, and the bindings between them. ``toymq_py.amqp`` knows what types and arguments mean. Knows no broker.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from toymq_py.config.option_schema import shown_key
from toymq_py.errors import ConfigError

NAME_BYTES_MAX = 255
"""The longest name of an exchange, a queue or a routing key: AMQP's short string."""
TABLES_DEPTH_MAX = 32
"""The deepest nesting of tables and arrays. RabbitMQ has no limit, and no client comes near this one."""
NUMBER_LIMIT = 1 << 63
"""Numbers are below this: the largest kind of whole number of a frame."""
DEFAULT_VHOST = "/"
_REQUIRED = object()
FIELDS: Mapping[str, Mapping[str, tuple[type, Any]]] = {
    "exchange": {
        "vhost": (str, DEFAULT_VHOST), "name": (str, _REQUIRED), "type": (str, _REQUIRED), "auto_delete": (bool, False),
        "internal": (bool, False),
        "arguments": (dict, {}),
    },
    "queue": {
        "vhost": (str, DEFAULT_VHOST), "name": (str, _REQUIRED), "durable": (bool, True), "auto_delete": (bool, False),
        "arguments": (dict, {}),
    },
    "binding": {
        "vhost": (str, DEFAULT_VHOST), "source": (str, _REQUIRED), "queue": (str, None), "exchange": (str, None),
        "routing_key": (str, ""),
        "arguments": (dict, {}),
    },
}  # fmt: skip
"""The keys of each section with type and default."""
_NAMING = ("vhost", "name", "source", "queue", "exchange", "routing_key")
"""The fields that name a definition."""
KINDS = tuple(FIELDS)
"""The kinds of definitions, in the order in which they can be made."""

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AmqpDefinition:
    """One exchange, queue or binding. ``values`` has each key of ``FIELDS[kind]``."""

    kind: str
    values: Mapping[str, Any]

    @property
    def key(self) -> Key:
        """What identifies a definition: its kind, virtual host and name; of a binding, all its fields."""
        values = self.values
        if self.kind != "binding":
            return self.kind, values["vhost"], values["name"]
        arguments = json.dumps(values["arguments"], sort_keys=True)
        to = values["queue"] or "", values["exchange"] or ""
        return self.kind, values["vhost"], values["source"], *to, values["routing_key"], arguments

    @property
    def written(self) -> dict[str, Any]:
        """The keys to write to a file: those whose values differ from the defaults."""
        return {name: self.values[name] for name, (_, usual) in FIELDS[self.kind].items() if self.values[name] != usual}

    @property
    def name(self) -> str:
        """The name that errors and lists of changes give the definition."""
        values = self.values
        host = "" if values["vhost"] == DEFAULT_VHOST else f" of vhost {_shown(values['vhost'])}"
        if self.kind != "binding":
            return f"{self.kind} {_shown(values['name'])}{host}"
        kind = "queue" if values["queue"] is not None else "exchange"
        target = f"{kind} {_shown(values[kind])} {_shown(values['routing_key'])}".rstrip()
        return f"binding {_shown(values['source'])} -> {target}{host}"


@dataclass(frozen=True, slots=True)
class Declare:
    """A declaration to make. ``before``: the existing definition; None for a new one. A declaration that differs from an
    existing one is refused, since clients rely on that."""

    definition: AmqpDefinition
    before: AmqpDefinition | None = field(default=None)
    verb: ClassVar = "declare"

    def __str__(self) -> str:
        definition, before = self.definition, self.before
        if before is None:
            more = {key: value for key, value in definition.written.items() if key not in _NAMING}
            return " ".join([f"+ {definition.name}", *(f"{key}={_shown(value)}" for key, value in more.items())])
        changes = (
            f"{key}={_shown(before.values[key])} -> {_shown(value)}" for key, value in definition.values.items()
            if before.values[key] != value
        )  # fmt: skip
        return f"~ {definition.name} {', '.join(changes)}"

    @property
    def refusal(self) -> str | None:
        """Why the declaration is refused; None when it is not."""
        return None if self.before is None else "what is there is not changed: delete it first"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value)


def check_vhost(name: str) -> None:
    """Return the name of a virtual host. Raises: ConfigError for an invalid name, and for ``/``, which always exists."""
    if name == DEFAULT_VHOST or not name.isprintable() or not 0 < len(name.encode("utf-8", "replace")) <= NAME_BYTES_MAX:
        raise ConfigError(f"invalid virtual host {name[:50]!a}: write 1 to {NAME_BYTES_MAX} bytes, printable, and not /")


# -- reading


def read(kind: str, where: str, entry: Mapping[str, Any]) -> AmqpDefinition:
    """Read a definition from one table of a TOML file, or one JSON object. Raises: ConfigError, which begins with ``where``."""
    known = FIELDS[kind]
    for key in entry:
        if key not in known:
            raise ConfigError(f"{where}: there is no key {shown_key(key)} of {kind}s, there are {', '.join(known)}")
    values: dict[str, Any] = {}
    for key, (wanted, usual) in known.items():
        value = entry.get(key, usual)
        if value is _REQUIRED:
            raise ConfigError(f"{where}: it needs a {key}")
        if key == "arguments" and isinstance(value, str):
            value = _arguments(where, value)
        if value is not None or usual is not None:
            _check(where, key, value, wanted)
        values[key] = value
    if kind == "binding" and (values["queue"] is None) == (values["exchange"] is None):
        raise ConfigError(f"{where}: a binding leads to a queue or to an exchange: name one of them")
    if kind != "binding" and not values["name"]:
        raise ConfigError(f"{where}: it needs a name")
    return AmqpDefinition(kind, values)


def add(found: dict[Key, AmqpDefinition], kind: str, where: str, entry: Mapping[str, Any]) -> None:
    """Read a definition into ``found``. Raises: ConfigError, as ``read``, and for a name defined twice, even equally."""
    definition = read(kind, where, entry)
    if definition.key in found:
        raise ConfigError(f"{where}: {definition.name} stands twice")
    found[definition.key] = definition


def _arguments(where: str, text: str) -> Any:
    """Parse arguments written as JSON, the form for arguments with a null, which TOML does not have. Raises: ConfigError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: arguments are a table, or a text with a JSON object: {error}") from error


def _check(where: str, key: str, value: Any, wanted: type) -> None:
    if type(value) is not wanted:
        noun = {str: "text", bool: "true or false", dict: "a table"}[wanted]
        raise ConfigError(f"{where}: {key} is {noun}, not {str(value)[:50]!a}")
    if isinstance(value, str):
        if _is_no_utf8(value):
            raise ConfigError(f"{where}: {key} is not UTF-8: {value[:50]!a}")
        if len(value.encode()) > NAME_BYTES_MAX:
            raise ConfigError(f"{where}: {key} has at most {NAME_BYTES_MAX} bytes")
    if wanted is dict:
        _check_arguments(where, value)


def _is_no_utf8(text: str) -> bool:
    """Whether a text has half of a surrogate pair: JSON can express that, a frame of AMQP cannot."""
    return any("\ud800" <= char <= "\udfff" for char in text)


def _check_arguments(where: str, value: Any, depth: int = 0) -> None:
    """Refuse a value that an AMQP frame cannot express. Raises: ConfigError."""
    if isinstance(value, dict | list) and depth >= TABLES_DEPTH_MAX:
        raise ConfigError(f"{where}: tables of arguments are nested more than {TABLES_DEPTH_MAX} deep")
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_arguments(where, name)
            if len(name.encode()) > NAME_BYTES_MAX:
                raise ConfigError(f"{where}: the name of an argument has at most {NAME_BYTES_MAX} bytes: {name[:50]!a}")
            _check_arguments(where, inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _check_arguments(where, inner, depth + 1)
    elif isinstance(value, str) and _is_no_utf8(value):
        raise ConfigError(f"{where}: a text of arguments is not UTF-8: {value[:50]!a}")
    elif isinstance(value, int) and not -NUMBER_LIMIT <= value < NUMBER_LIMIT:
        raise ConfigError(f"{where}: a number of arguments has more than 64 bits")
    elif value is not None and not isinstance(value, str | bool | int | float):
        raise ConfigError(f"{where}: arguments are texts, numbers, true, false, tables and arrays, not {str(value)[:50]!a}")


# -- writing


def toml_of(definition: AmqpDefinition) -> str:
    """The definition in TOML; ``read`` parses it again."""
    lines = [f"[[{definition.kind}]]"]
    for key, value in definition.written.items():
        as_text = key == "arguments" and _has_null(value)
        lines.append(f"{key} = {_text(json.dumps(value)) if as_text else _toml(value)}")
    return "\n".join(lines) + "\n"


def _has_null(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(_has_null, value.values() if isinstance(value, dict) else value))
    return value is None


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)} = {_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return _text(value)
    return repr(value) if isinstance(value, float) else json.dumps(value)


def _text(value: str) -> str:
    """A text as a TOML basic string: with the escapes of JSON, and DEL escaped. Non-ASCII characters are not escaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# -- comparing


def by_key(definitions: Iterable[AmqpDefinition]) -> dict[Key, AmqpDefinition]:
    """Definitions by key, in the order exchanges, queues, bindings. Of several with one key the last counts."""
    found = {each.key: each for each in definitions}
    return dict(sorted(found.items(), key=lambda item: (KINDS.index(item[0][0]), item[0])))


def plan(wanted: Mapping[Key, AmqpDefinition], present: Mapping[Key, AmqpDefinition]) -> list[Declare]:
    """The declarations that turn ``present`` into ``wanted``, in the order in which to make them."""
    return [Declare(each, present.get(key)) for key, each in by_key(wanted.values()).items() if present.get(key) != each]
