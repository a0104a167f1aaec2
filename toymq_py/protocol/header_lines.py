"""Parse and encode the header lines of commands. Contract: protocol.md, "Commands"."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from toymq_py.consumer_options import LEASE_NUMBER_MAX, POLL_MODES, Start, parse_mode
from toymq_py.errors import BadArgument, RequestError, UnknownCommand
from toymq_py.failure import Failure, decode_text, encode_text, failure_of
from toymq_py.names import check_name, check_topic_or_pattern
from toymq_py.protocol import commands
from toymq_py.protocol.commands import Ack, Command, Publish
from toymq_py.protocol.frames import (
    COUNT_MAX,
    DEFAULT_FETCH_BYTES,
    FETCH_BYTES_MAX,
    LINE_BYTES_MAX,
    NO_KEY,
    format_ids,
    is_key,
    parse_ids,
    parse_ms,
)
from toymq_py.records import UNIX_MS_MAX
from toymq_py.units import parse_number

Options = dict[str, str]
_SETTING = re.compile(r"[a-z_]{1,64}\Z")
_FAILURE = ("reason", "error_type", "error", "traceback")
_FAILURE_NAMES = frozenset(_FAILURE)


def topic_name(text: str) -> str:
    """Parse a topic name. Raises: BadName."""
    return check_name("topic", text)


def consumer_name(text: str) -> str:
    """Parse a consumer name. Raises: BadName."""
    return check_name("consumer", text)


def split_options(tokens: list[str], known: frozenset[str] | None) -> Options:
    """Split options, ``name=value``, by name. With ``known`` None every topic setting's name is accepted.

    Raises: BadArgument for an unknown option, one that is given twice, or another token.
    """
    options: Options = {}
    for token in tokens:
        name, equals, value = token.partition("=")
        if not equals:
            raise BadArgument("invalid option: write name=value behind the arguments")
        if name not in known if known is not None else not _SETTING.match(name):
            takes = ", ".join(sorted(known)) or "none" if known is not None else "a topic's settings"
            raise BadArgument(f"unknown option {_shown(name)}: this command takes {takes}")  # its value may be a secret
        if name in options:
            raise BadArgument(f"option {name} is given twice")
        if not value:
            raise BadArgument(f"option {name} has no value: write {name}=VALUE")
        options[name] = value
    return options


def _shown(token: str) -> str:
    return ascii(token[:40])[1:-1]


def _flag(options: Options, name: str, default: str = "0") -> bool:
    value = options.get(name, default)
    if value not in ("0", "1"):
        raise BadArgument(f"invalid {name} {value[:50]!a}: write 0 or 1")
    return value == "1"


def _ms(options: Options, name: str, low: int = 0) -> int | None:
    return parse_ms(name, options[name], low) if name in options else None


def _number(options: Options, name: str, low: int, high: int) -> int | None:
    return parse_number(name, options[name], low, high) if name in options else None


def _lease(options: Options) -> int | None:
    return _number(options, "lease", 1, LEASE_NUMBER_MAX)


def _hello(a: list[str], o: Options) -> Command:
    try:
        version = parse_number("version", a[0], 0, COUNT_MAX)
    except BadArgument:  # without the value, which may be a token
        raise BadArgument("invalid version: the line is HELLO 1 auth=TOKEN") from None
    return commands.Hello(version, o.get("auth"), o.get("name"))


def _subscribe(a: list[str], o: Options) -> Command:
    mode = parse_mode(o["mode"]) if "mode" in o else None
    start = Start.parse(o["start"]) if "start" in o else None
    return commands.Subscribe(
        check_topic_or_pattern(a[0]), consumer_name(a[1]), _number(o, "window", 1, COUNT_MAX), _ms(o, "visibility", 1),
        start, mode, _lease(o),
    )  # fmt: skip


def _unsubscribe(a: list[str], o: Options) -> Command:
    return commands.Unsubscribe(check_topic_or_pattern(a[0]), consumer_name(a[1]), _flag(o, "uncounted"))


def _held(a: list[str], o: Options) -> Command:
    return commands.Held(check_topic_or_pattern(a[0]), consumer_name(a[1]), _flag(o, "uncounted") if "uncounted" in o else None)


def _pull(a: list[str], o: Options) -> Command:
    count = parse_number("max", a[2], 1, COUNT_MAX)
    wait_ms, visibility_ms = _ms(o, "wait") or 0, _ms(o, "visibility", 1)
    mode = parse_mode(o["mode"], POLL_MODES) if "mode" in o else None
    return commands.Pull(check_topic_or_pattern(a[0]), consumer_name(a[1]), count, wait_ms, visibility_ms, _lease(o), mode)


def _ack(a: list[str], o: Options) -> Command:
    return Ack(topic_name(a[0]), consumer_name(a[1]), parse_ids(a[2]), _flag(o, "sync"))


def _nack(a: list[str], o: Options) -> Command:
    failure: Failure | None = None
    if o and not _FAILURE_NAMES.isdisjoint(o):
        failure = failure_of(*(decode_text(o[name]) if name in o else None for name in _FAILURE))
    dead, uncounted = _flag(o, "dead"), _flag(o, "uncounted")
    if uncounted and (dead or failure is not None or "delay" in o):
        raise BadArgument("uncounted=1 excludes delay, dead, reason and error: no application had these messages")
    return commands.Nack(
        topic_name(a[0]), consumer_name(a[1]), parse_ids(a[2]), _ms(o, "delay"), dead, failure, uncounted, _lease(o)
    )


def _touch(a: list[str], o: Options) -> Command:
    return commands.Touch(topic_name(a[0]), consumer_name(a[1]), parse_ids(a[2]), _ms(o, "visibility", 1), _lease(o))


def _fetch(a: list[str], o: Options) -> Command:
    from_id = parse_number("message id", a[1])
    count = parse_number("max-count", a[2], 1, COUNT_MAX)
    max_bytes = _number(o, "max_bytes", 1, FETCH_BYTES_MAX) or DEFAULT_FETCH_BYTES
    return commands.Fetch(topic_name(a[0]), from_id, count, max_bytes, _ms(o, "wait") or 0, o.get("incarnation"))


def _offsets(a: list[str], o: Options) -> Command:
    return commands.Offsets(topic_name(a[0]), _number(o, "at", 0, UNIX_MS_MAX), _flag(o, "incarnation", "0"))


def _redrive(a: list[str], o: Options) -> Command:
    ids = parse_ids(o["ids"]) if "ids" in o else None
    return commands.Redrive(topic_name(a[0]), ids, _number(o, "max", 1, COUNT_MAX))

def _seek(a: list[str], o: Options) -> Command:
    return commands.Seek(topic_name(a[0]), consumer_name(a[1]), Start.parse(a[2]), _flag(o, "create", "1"))


@dataclass(frozen=True, slots=True)
class _Verb:
    """The grammar of one verb: how many arguments, how many of them ``optional``, its options, and its parser."""

    args: int
    options: frozenset[str] | None
    build: Callable[[list[str], Options], Command]
    optional: int = 0


def _verb(args: int, options: str, build: Callable[[list[str], Options], Command], optional: int = 0) -> _Verb:
    return _Verb(args, frozenset(options.split()), build, optional)


VERBS: dict[str, _Verb] = {
    "HELLO": _verb(1, "auth name", _hello),
    "SUB": _verb(2, "window visibility start mode lease", _subscribe),
    "UNSUB": _verb(2, "uncounted", _unsubscribe),
    "HELD": _verb(2, "uncounted", _held),
    "PULL": _verb(3, "wait visibility lease mode", _pull),
    "ACK": _verb(3, "sync", _ack),
    "NACK": _verb(3, f"delay dead uncounted lease {' '.join(_FAILURE)}", _nack),
    "TOUCH": _verb(3, "visibility lease", _touch),
    "PAUSE": _verb(0, "", lambda a, o: commands.Pause()),
    "RESUME": _verb(0, "", lambda a, o: commands.Resume()),
    "FETCH": _verb(3, "max_bytes wait incarnation", _fetch),
    "OFFSETS": _verb(1, "at incarnation", _offsets),
    "CREATE": _Verb(1, None, lambda a, o: commands.Create(topic_name(a[0]), o)),
    "CONFIG": _Verb(1, None, lambda a, o: commands.Config(topic_name(a[0]), o)),
    "DELETE": _verb(1, "", lambda a, o: commands.Delete(topic_name(a[0]))),
    "PURGE": _verb(1, "", lambda a, o: commands.Purge(topic_name(a[0]))),
    "SEEK": _verb(3, "create", _seek),
    "FORGET": _verb(2, "", lambda a, o: commands.Forget(topic_name(a[0]), consumer_name(a[1]))),
    "REDRIVE": _verb(1, "ids max", _redrive),
    "TOPICS": _verb(0, "", lambda a, o: commands.Topics(check_topic_or_pattern(a[0]) if a else None), optional=1),
    "DESCRIBE": _verb(1, "", lambda a, o: commands.Describe(topic_name(a[0]))),
    "STATS": _verb(0, "partial", lambda a, o: commands.Stats(_flag(o, "partial"))),
    "CLUSTER": _verb(0, "moved", lambda a, o: commands.Cluster(_flag(o, "moved"))),
    "PING": _verb(0, "", lambda a, o: commands.Ping()),
    "QUIT": _verb(0, "", lambda a, o: commands.Quit()),
}
"""The parsers of every verb but PUB, which has a body."""


def parse_line(line: bytes) -> Command:
    """Parse a header line without its newline; any verb but PUB.

    Raises: UnknownCommand, BadArgument, BadName.
    """
    text = line.decode("latin-1")
    verb, *tokens = text.split(" ")
    known = VERBS.get(verb)
    if known is None:
        raise UnknownCommand(f"unknown command {_shown(verb.partition('=')[0]) or '(an empty line)'}")
    if not text.isascii() or not text.isprintable():
        raise BadArgument("invalid header line: write printable ASCII")
    if "" in tokens:
        raise BadArgument("invalid header line: separate tokens by exactly one space")
    args, rest = tokens[: known.args], tokens[known.args :]
    if len(args) < known.args:
        raise BadArgument(f"{verb} takes {known.args} arguments, not {len(args)}")
    if known.optional and rest:
        args, rest = [*args, rest[0]], rest[1:]
    return known.build(args, split_options(rest, known.options))


def is_http(line: bytes) -> bool:
    """Whether a header line is an HTTP request line or ``Host:``. No command of this protocol ends like an HTTP request
    line."""
    return line.startswith(b"HTTP/", line.rfind(b" ") + 1) or line[:5].lower() == b"host:"


def invalid_key(key: bytes) -> BadArgument:
    """The error for the key of a PUB."""
    shown = key[:50].decode("latin-1")
    return BadArgument(f"invalid key {shown!a}: write 1 to 512 bytes of printable ASCII without space, or - for no key")


PUB_OPTIONS = frozenset(("hdr", "delay", "ttl", "seq", "route"))
SEQUENCE_MAX = 2**64 - 1


def build_publish(topic: str, key: bytes, options: list[str], body_len: int) -> Publish:
    """Make a PUB with options whose body is still to come.

    Raises: BadArgument.
    """
    found = split_options(options, PUB_OPTIONS)
    hdr = _number(found, "hdr", 0, body_len) or 0
    delay_ms, ttl_ms = _ms(found, "delay"), _ms(found, "ttl", 1)
    seq = _number(found, "seq", 0, SEQUENCE_MAX)
    if seq is not None and not key:
        raise BadArgument("seq needs a key, the name of the producer")
    routes = [_route(found["route"].encode("latin-1"))] if "route" in found else None
    return Publish(topic, [key], [], hdr, _one(delay_ms), _one(ttl_ms), _one(seq), routes=routes)


def _route(route: bytes) -> bytes:
    """Check a route. Raises: BadArgument."""
    if not is_key(route):
        shown = route[:50].decode("latin-1")
        raise BadArgument(f"invalid route {shown!a}: write 1 to 512 bytes of printable ASCII without space")
    return route


def _one(number: int | None) -> list[int] | None:
    return None if number is None else [number]


def refused_publish(tokens: list[bytes]) -> tuple[str, bytes, int] | None:
    """Topic, producer and sequence of an invalid PUB line; None where they are missing."""
    sequences = [token[4:] for token in tokens[4:] if token.startswith(b"seq=")]
    if len(sequences) != 1 or not is_key(tokens[2]):
        return None
    try:
        sequence = parse_number("seq", sequences[0].decode("latin-1"), 0, SEQUENCE_MAX)
        return topic_name(tokens[1].decode("latin-1")), tokens[2], sequence
    except RequestError:
        return None


def _text(text: str | None) -> str | None:
    return None if text is None else encode_text(text)


def _line(verb: str, /, *args: object, **options: object) -> bytes:
    shown = [f"{name}={value}" for name, value in options.items() if value is not None]
    return " ".join([verb, *map(str, args), *shown]).encode("ascii") + b"\n"


def encode_command(command: Command) -> bytes:
    """Encode a command with its bodies; the inverse of the server's parser.

    Raises: BadName, BadArgument when the bytes would be parsed as anything else; TypeError for ``Rejected`` and
        ``SettlementRun``, which only a server has.
    """
    data = _encode(command)
    if not isinstance(command, Publish) and len(data) > LINE_BYTES_MAX:
        raise BadArgument(f"the header line has {len(data)} bytes, the limit is {LINE_BYTES_MAX}: send fewer ids at a time")
    # A space or newline inside an argument must become no option and no command.
    if not isinstance(command, Publish) and parse_line(data[:-1]) != command:
        raise BadArgument(f"{_shown(repr(command))} cannot be encoded: arguments have no spaces and line breaks")
    return data


def _encode(command: Command) -> bytes:
    match command:
        case Publish():
            return _encode_publish(command)
        case commands.Hello(version, auth, name):
            return _line("HELLO", version, auth=auth, name=name)
        case commands.Subscribe(topic, consumer, window, visibility_ms, start, mode, lease):
            named = {"start": start, "mode": mode, "lease": lease}
            return _line("SUB", topic, consumer, window=window, visibility=visibility_ms, **named)
        case commands.Unsubscribe(topic, consumer, uncounted):
            return _line("UNSUB", topic, consumer, uncounted=1 if uncounted else None)
        case commands.Held(topic, consumer, uncounted):
            return _line("HELD", topic, consumer, uncounted=None if uncounted is None else int(uncounted))
        case commands.Pull(topic, consumer, max_count, wait_ms, visibility_ms, lease, mode):
            named = {"lease": lease, "mode": mode}
            return _line("PULL", topic, consumer, max_count, wait=wait_ms or None, visibility=visibility_ms, **named)
        case Ack(topic, consumer, ids, sync):
            return _line("ACK", topic, consumer, format_ids(ids), sync=1 if sync else None)
        case commands.Nack(topic, consumer, ids, delay_ms, dead, failure, uncounted, lease):
            texts = {} if failure is None else {name: _text(getattr(failure, name)) for name in _FAILURE}
            flags = {"dead": 1 if dead else None, "uncounted": 1 if uncounted else None}
            return _line("NACK", topic, consumer, format_ids(ids), delay=delay_ms, **flags, lease=lease, **texts)
        case commands.Touch(topic, consumer, ids, visibility_ms, lease):
            return _line("TOUCH", topic, consumer, format_ids(ids), visibility=visibility_ms, lease=lease)
        case commands.Fetch(topic, from_id, max_count, max_bytes, wait_ms, incarnation):
            limit = max_bytes if max_bytes != DEFAULT_FETCH_BYTES else None
            return _line("FETCH", topic, from_id, max_count, max_bytes=limit, wait=wait_ms or None, incarnation=incarnation)
        case commands.Offsets(topic, at_ms, incarnation):
            return _line("OFFSETS", topic, at=at_ms, incarnation=int(incarnation) or None)
        case commands.Create(topic, settings):
            return _line("CREATE", topic, **settings)
        case commands.Config(topic, settings):
            return _line("CONFIG", topic, **settings)
        case commands.Seek(topic, consumer, start, creates):
            return _line("SEEK", topic, consumer, start, create=None if creates else 0)
        case commands.Forget(topic, consumer):
            return _line("FORGET", topic, consumer)
        case commands.Redrive(topic, ids_or_none, max_or_none):
            return _line("REDRIVE", topic, ids=format_ids(ids_or_none) if ids_or_none else None, max=max_or_none)
        case commands.Topics(pattern):
            return _line("TOPICS", *([pattern] if pattern is not None else []))
        case commands.Delete(topic):
            return _line("DELETE", topic)
        case commands.Purge(topic):
            return _line("PURGE", topic)
        case commands.Describe(topic):
            return _line("DESCRIBE", topic)
        case commands.Cluster(moved):
            return _line("CLUSTER", moved=1 if moved else None)
        case commands.Stats(is_partial):
            return _line("STATS", partial=1 if is_partial else None)
        case commands.Pause() | commands.Resume() | commands.Ping() | commands.Quit():
            return _line(type(command).__name__.upper())
        case commands.Rejected() | commands.SettlementRun():
            raise TypeError(f"{type(command).__name__} is an event of the server, not a command")


def _encode_publish(command: Publish) -> bytes:
    if command.hdr and len(command.keys) != 1:
        raise BadArgument("a PUB with hdr has one key and one body")
    head = publish_head(command.topic)
    parts = []
    for row, (key, body) in enumerate(zip(command.keys, command.bodies, strict=True)):
        delay_ms = None if command.delays_ms is None else command.delays_ms[row]
        ttl_ms = None if command.ttls_ms is None else command.ttls_ms[row]
        options = publish_options(command.hdr, delay_ms, ttl_ms, b"" if command.routes is None else command.routes[row])
        sequence = b"" if command.seqs is None else publish_sequence(key, command.seqs[row])
        parts.append(b"%b%b %d%b%b\n%b\n" % (head, publish_key(key), len(body), options, sequence, body))
    return b"".join(parts)


def publish_head(topic: str) -> bytes:
    """The beginning of every PUB to the topic. Raises: BadName."""
    return b"PUB %b " % topic_name(topic).encode()


def publish_key(key: bytes) -> bytes:
    """The token for a key in a PUB line; b"" stands for no key. Raises: BadArgument."""
    if not key:
        return NO_KEY
    if not is_key(key):
        raise invalid_key(key)
    return key


def publish_options(hdr: int = 0, delay_ms: int | None = None, ttl_ms: int | None = None, route: bytes = b"") -> bytes:
    """The options of a PUB but ``seq``, each with a space before it; b"" when none is given. Raises: BadArgument."""
    options = ((b"hdr", hdr or None), (b"delay", delay_ms), (b"ttl", ttl_ms))
    given = b"".join(b" %b=%d" % (name, value) for name, value in options if value is not None)
    return given + (b" route=%b" % _route(route) if route else b"")


def publish_sequence(producer: bytes, sequence: int) -> bytes:
    """The option ``seq``, with a space before it. Raises: BadArgument."""
    if not producer:
        raise BadArgument("seq needs a key, the name of the producer")
    if not 0 <= sequence <= SEQUENCE_MAX:
        raise BadArgument(f"invalid seq {sequence}: a whole number from 0 to {SEQUENCE_MAX}")
    return b" seq=%d" % sequence
