"""Options of source and sink: names, defaults and checks.

Contract: spark.md; the names are those of Spark's Kafka connector. Spark passes option names in lower case. An unknown or
misplaced option is an error: ignoring it would give a wrong result.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn, TypeVar

from toymq.url import parse_url
from toymq_py.config.tier_url import parse_tier
from toymq_py.errors import BadName, ConfigError
from toymq_py.names import PARTITION_MARK, check_name, whole_name
from toymq_py.records import MSG_ID_MAX
from toymq_py.units import parse_duration_ms
from toymq_spark.errors import OptionError
from toymq_spark.partitions import topics_of

Mode = Literal["batch", "stream"]
T = TypeVar("T")

EARLIEST = -2
LATEST = -1
"""Kafka's numbers for the ends of a log in JSON offsets."""

MAX_RECORDS_PER_PARTITION = 250_000
"""A task of this size takes about a second: long beside its start (31 ms), short enough to spread and retry."""
NUM_RETRIES = 3
RETRY_INTERVAL_MS = 1000
"""Doubled each time: 7 s in total, enough for a broker's restart."""
MAX_TRIGGER_DELAY_MS = 15 * 60 * 1000
LATEST_BY_KEY = "latestByKey"
LATEST_BY_GROUP = "latestByGroup"
FORMATS = ("json", "avro", "protobuf")
BAD_ROWS = ("fail", "null", "deadletter")

_ACCESS = ("toymq.token", "toymq.token.file", "toymq.tls", "toymq.tls.ca", "toymq.tls.cert", "toymq.tls.key")
_EVERYWHERE = ("url", "toymq.bootstrap.servers", *_ACCESS)
_TYPED = ("valueFormat", "valueSchema", "valueSchema.credentials.file")
_SOURCE = (
    *_EVERYWHERE, "path", "tier", "tierUrl", "subscribe", "subscribePattern", "assign", "startingOffsets", "startingTimestamp",
    "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "minPartitions", "maxRecordsPerPartition",
    "failOnDataLoss", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "includeHeaders", "partitions", *_TYPED,
    "badRows",
)  # fmt: skip
_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_SINK = (*_EVERYWHERE, *_TYPED, "topic", "producerId", "skipBatch")
_SPARKS_OWN = ("checkpointLocation", "queryName")
"""Spark's own options, which it also passes to a streaming sink."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of PEM files on every node: the broker's CA (None: the system's), client certificate and key."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker's URL, with its access (token, certificates) and the retries of requests to it (``broker.connect``)."""

    url: str
    num_retries: int = NUM_RETRIES
    retry_interval_ms: int = RETRY_INTERVAL_MS
    token_file: str | None = None
    certificates: Certificates | None = None


@dataclass(frozen=True, slots=True)
class Directory:
    """The path of a data directory or a backup to read."""

    path: str


@dataclass(frozen=True, slots=True)
class History:
    """The bucket of a broker's ``--tier``. ``alone``: no records are read from the broker's log."""

    url: str
    alone: bool


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics to read: names, or a regular expression that matches the whole name."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    exact: bool = False
    """A partitioned topic is named by its partitions."""

    def select(self, present: Callable[[], list[str]]) -> list[str]:
        """Return the names, sorted; ``present``, which lists the existing topics, is called only for a pattern."""
        if self.pattern is None:
            return sorted(self.names)
        matches = re.compile(self.pattern).fullmatch
        return sorted(name for name in present() if matches(name) or matches(whole_name(name)))


@dataclass(frozen=True, slots=True)
class Edge:
    """Where reading starts or ends: an id, an end of the log, or a time; for all topics or by topic.

    ``kind`` "id": numbers are ids, ``EARLIEST`` or ``LATEST``. "time": milliseconds since the epoch.
    """

    kind: Literal["id", "time"]
    everywhere: int | None = None
    by_topic: Mapping[str, int] | None = None

    def of(self, topic: str) -> int:
        """Return the number for a topic. Raises: OptionError when the option names only other topics."""
        if self.by_topic is None:
            assert self.everywhere is not None
            return self.everywhere
        if topic not in self.by_topic and topic.removesuffix("#0") in self.by_topic:
            return self.by_topic[topic.removesuffix("#0")]
        if topic not in self.by_topic:
            raise OptionError(f"the given offsets name {', '.join(sorted(self.by_topic))}: add topic {topic}")
        return self.by_topic[topic]


@dataclass(frozen=True, slots=True)
class ValueOptions:
    """The options for typed values. ``schema``: the text of ``valueSchema`` (``values.formats``)."""

    format: str
    schema: str | None
    bad_rows: str = "fail"
    credentials_file: str | None = None
    """Has ``user:password`` of a schema registry."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a source. Counts are numbers of records."""

    place: BrokerAddress | Directory | History
    history: History | None
    """The bucket of the broker at ``place``, if it is to be read."""
    topics: Topics
    start: Edge
    end: Edge
    late_start_is_error: bool
    """Whether a starting time after the last record is an error, or the end of the log."""
    include_headers: bool
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int
    cuts_segments: bool
    """Whether one of these two was given: a segment of a bucket with more records is read by several tasks."""
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    values: ValueOptions | None = None
    latest_by_key: bool = False
    """Read only the newest record of each key."""
    divided: bool = True
    """Partition 3 of orders is topic orders, partition 3, and not the topic orders#3."""
    by_group: bool = False
    """Of each group instead: the header ``toymq-group``, or else the key."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    address: BrokerAddress
    topic: str | None
    producer_id: str | None
    skip_batch: int | None = None
    values: ValueOptions | None = None


def parse_source(given: Mapping[str, str], mode: Mode | None = None) -> SourceOptions:
    """Parse the options of a source.

    Args:
        mode: batch or streaming; None when unknown: options of either mode are accepted.

    Raises: OptionError.
    """
    options = _Options(given)
    options.refuse_unknown((*_SOURCE, *_BATCH_ONLY, *_STREAM_ONLY))
    if mode == "stream":
        options.refuse(_BATCH_ONLY, "a stream has no end")
    if mode == "batch":
        options.refuse(_STREAM_ONLY, "a batch has no triggers")
    if options.text("maxTriggerDelay") is not None and options.text("minOffsetsPerTrigger") is None:
        options.fail("maxTriggerDelay", "needs minOffsetsPerTrigger")
    place = _place(options)
    history = _history(options, place)
    in_bucket = any(isinstance(each, History) and each.alone for each in (place, history))
    return SourceOptions(
        place=place,
        history=history,
        topics=_topics(options),
        start=_start(options, mode),
        end=_end(options),
        late_start_is_error=options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error") == "error",
        include_headers=options.boolean("includeHeaders", False),
        fail_on_data_loss=options.boolean("failOnDataLoss", True),
        min_partitions=options.number("minPartitions", 1),
        max_records_per_partition=options.number("maxRecordsPerPartition", 1) or MAX_RECORDS_PER_PARTITION,
        cuts_segments=any(options.text(name) is not None for name in ("minPartitions", "maxRecordsPerPartition")),
        max_offsets_per_trigger=options.number("maxOffsetsPerTrigger", 1),
        min_offsets_per_trigger=options.number("minOffsetsPerTrigger", 1),
        max_trigger_delay_ms=options.duration_ms("maxTriggerDelay", MAX_TRIGGER_DELAY_MS),
        values=_values(options, source=True, broker=isinstance(place, BrokerAddress)),
        latest_by_key=_latest_by_key(options, mode, in_bucket=in_bucket),
        divided=options.choice("partitions", ("columns", "topics"), "columns") == "columns",
        by_group=(options.text("startingOffsets") or "").lower() == LATEST_BY_GROUP.lower(),
    )


def parse_sink(given: Mapping[str, str], mode: Mode) -> SinkOptions:
    """Parse the options of a sink. Raises: OptionError."""
    options = _Options(given)
    if "path" in options.given:
        options.fail("path", "a sink publishes through a broker: use url")
    if mode == "batch":
        options.refuse(_SPARKS_OWN, "a batch has no checkpoint and no query name")
    options.refuse_unknown((*_SINK, *_SPARKS_OWN))
    topic = options.text("topic")
    if topic is not None:
        options.checked("topic", lambda: check_name("topic", topic))
    producer_id = options.text("producerId")
    if producer_id is not None and not re.fullmatch(r"[A-Za-z0-9._-]{1,128}", producer_id):
        options.fail("producerId", f"invalid value {producer_id!r}: write 1 to 128 of A-Z a-z 0-9 . _ -")
    values = _values(options, source=False, broker=True)
    return SinkOptions(_address(options), topic, producer_id, options.number("skipBatch", 0), values)


class _Options:
    """The given options, looked up by name without regard to case."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = {name.lower(): str(value) for name, value in given.items()}

    def fail(self, name: str, why: str) -> NoReturn:
        raise OptionError(f"option {name}: {why}")

    def refuse_unknown(self, known: tuple[str, ...]) -> None:
        left = set(self.given) - {name.lower() for name in known}
        if kafkas := sorted(name for name in left if name.startswith("kafka.")):
            remedy = "write toymq.bootstrap.servers" if kafkas[0] == "kafka.bootstrap.servers" else "leave it out"
            raise OptionError(f"option {kafkas[0]} is of Kafka's client: {remedy}")
        if left:
            raise OptionError(f"unknown option {min(left)}: known are {', '.join(sorted(known))}")

    def refuse(self, names: tuple[str, ...], why: str) -> None:
        for name in names:
            if name.lower() in self.given:
                self.fail(name, f"has no effect here: {why}")

    def text(self, name: str) -> str | None:
        return self.given.get(name.lower())

    def checked(self, name: str, make: Callable[[], T]) -> T:
        try:
            return make()
        except (ConfigError, BadName) as error:
            self.fail(name, str(error))

    def one_of(self, names: tuple[str, ...]) -> tuple[str, str]:
        found = [(name, value) for name in names if (value := self.text(name)) is not None]
        if len(found) != 1:
            which = " and ".join(name for name, _ in found) or "none"
            raise OptionError(f"set exactly one of the options {', '.join(names)}, not {which}")
        return found[0]

    def number(self, name: str, at_least: int) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < at_least:
            self.fail(name, f"invalid number {text!r}: write a whole number of at least {at_least}")
        return int(text)

    def boolean(self, name: str, default: bool) -> bool:
        return self.choice(name, ("true", "false"), "true" if default else "false") == "true"

    def choice(self, name: str, values: tuple[str, ...], default: str) -> str:
        text = (self.text(name) or default).lower()
        if text not in values:
            self.fail(name, f"invalid value {text!r}: write {' or '.join(values)}")
        return text

    def duration_ms(self, name: str, default: int) -> int:
        text = self.text(name)
        return default if text is None else self.checked(name, lambda: parse_duration_ms(text))

    def json(self, name: str, text: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or not found:
            self.fail(name, f"invalid value {text[:80]!r}: write a JSON object of topics")
        for topic in found:
            self.checked(name, lambda topic=topic: check_name("topic", topic))  # type: ignore[misc]
        return found

    def by_topic(self, name: str, text: str, least: int) -> dict[str, int]:
        """Parse ``{"topic": {"0": n}}``, or for a partitioned topic ``{"topic": {"0": n, "1": m}}``, to numbers by topic."""
        numbers = {}
        for topic, value in self.json(name, text).items():
            try:
                found = {part: value[key] for key, part in topics_of(topic, value).items()} if isinstance(value, dict) else {}
            except ValueError:
                found = {}
            if not found:
                self.fail(name, f'partitions are numbers: {{"{topic}": {{"0": …}}}}')
            for part, number in found.items():
                if type(number) is not int or not least <= number <= MSG_ID_MAX:
                    self.fail(name, f"topic {part}: invalid number {number!r}: write a whole number of at least {least}")
                numbers[part] = number
        return numbers


def _place(options: _Options) -> BrokerAddress | Directory | History:
    name, value = options.one_of(("url", "toymq.bootstrap.servers", "path"))
    if name != "path":
        return _address(options)
    if not value:
        options.fail("path", "is empty: name a data directory, or the URL of a bucket")
    of_a_broker = (*_ACCESS, "tier", "tierUrl", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs")
    if ":/" in value:
        options.refuse(of_a_broker, "a bucket is read without a broker")
        return History(options.checked("path", lambda: parse_tier(value)), alone=True)
    options.refuse(of_a_broker, "a directory is read without a broker")
    return Directory(value)


def _history(options: _Options, place: BrokerAddress | Directory | History) -> History | None:
    url = options.text("tierUrl")
    mode = options.choice("tier", ("auto", "broker", "bucket"), "auto")
    if not isinstance(place, BrokerAddress):
        return None
    if url is None:
        if options.text("tier") is not None and mode != "broker":
            options.fail("tier", "needs tierUrl: the URL of the broker's --tier, as the executors reach it")
        return None
    options.checked("tierUrl", lambda: parse_tier(url))
    return None if mode == "broker" else History(url, alone=mode == "bucket")


def _address(options: _Options) -> BrokerAddress:
    name, url = options.one_of(("url", "toymq.bootstrap.servers"))
    if name == "toymq.bootstrap.servers":
        if "," in url or "//" in url:
            options.fail(name, f"invalid value {url!r}: write the host:port of one broker")
        url = f"{'toymqs' if options.boolean('toymq.tls', False) else 'toymq'}://{url}"
    elif options.text("toymq.tls") is not None:
        options.fail("toymq.tls", "leave it out: the url has it (toymqs:// is TLS)")
    address = options.checked(name, lambda: parse_url(url))
    given = [option for option in _ACCESS if options.text(option) is not None]
    if address.path is not None and given:
        options.fail(given[0], "has no effect with a Unix socket: leave it out")
    token, token_file = options.text("toymq.token"), options.text("toymq.token.file")
    if token is not None and token_file is not None:
        options.fail("toymq.token.file", "toymq.token is set: leave one out")
    if address.token is not None and (token is not None or token_file is not None):
        options.fail("toymq.token" if token is not None else "toymq.token.file", "the URL has a token: leave one out")
    if token is not None:
        url = replace(address, token=token).url
        options.checked("toymq.token", lambda: parse_url(url))
    retries = options.number("fetchOffset.numRetries", 0)
    interval_ms = options.number("fetchOffset.retryIntervalMs", 0)
    return BrokerAddress(
        url, NUM_RETRIES if retries is None else retries, RETRY_INTERVAL_MS if interval_ms is None else interval_ms,
        token_file, _certificates(options, address.tls),
    )  # fmt: skip


def _certificates(options: _Options, tls: bool) -> Certificates | None:
    names = ("toymq.tls.ca", "toymq.tls.cert", "toymq.tls.key")
    given = [name for name in names if options.text(name) is not None]
    if not given:
        return None
    if not tls:
        options.fail(given[0], "needs TLS: toymqs://…, or toymq.bootstrap.servers with toymq.tls=true")
    if given[-1] == "toymq.tls.key" and "toymq.tls.cert" not in given:
        options.fail("toymq.tls.key", "needs toymq.tls.cert")
    return Certificates(*map(options.text, names))


def _values(options: _Options, *, source: bool, broker: bool) -> ValueOptions | None:
    """
    Args:
        source: whether these are options of a source; a sink encodes values, and so has no bad rows.
        broker: whether there is a broker, to which bad rows can be published.
    """
    if options.text("valueFormat") is None:
        options.refuse((*_TYPED, "badRows"), "it needs valueFormat")
        return None
    found = ValueOptions(
        options.choice("valueFormat", FORMATS, ""), options.text("valueSchema"), options.choice("badRows", BAD_ROWS, "fail"),
        options.text("valueSchema.credentials.file"),
    )  # fmt: skip
    if found.credentials_file is not None and not (found.schema or "").startswith(("http://", "https://")):
        options.fail("valueSchema.credentials.file", "needs the URL of a registry as valueSchema")
    if found.schema is not None and not found.schema.strip():
        options.fail("valueSchema", "is empty")
    if found.schema is None and (source or found.format != "json"):
        options.fail("valueSchema", f"is missing: valueFormat={found.format} needs the columns of a value")
    if found.bad_rows == "deadletter" and not broker:
        options.fail("badRows", "deadletter publishes, and a path is read without a broker: use url")
    return found


def _topics(options: _Options) -> Topics:
    name, text = options.one_of(("subscribe", "subscribePattern", "assign"))
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            options.fail(name, f"invalid regular expression {text!r}: {error}")
        return Topics(pattern=text)
    if name == "subscribe":
        names = [part.strip() for part in text.split(",")]
        for topic in names:
            options.checked(name, lambda topic=topic: check_name("topic", topic))  # type: ignore[misc]
    else:
        found = options.json(name, text)
        parts = []
        for topic, numbers in found.items():
            if not isinstance(numbers, list) or not numbers or any(type(number) is not int or number < 0 for number in numbers):
                options.fail(name, 'partitions are a list of numbers: {"topic": [0]}')
            parts += [topic] if numbers == [0] else [f"{topic}{PARTITION_MARK}{number}" for number in numbers]
        return Topics(tuple(sorted(set(parts))), exact=True)
    return Topics(tuple(sorted(set(names))))


def _start(options: _Options, mode: Mode | None) -> Edge:
    edge = _timed(options, "startingTimestamp", "startingOffsetsByTimestamp")
    if edge is not None:
        return edge
    if options.text("startingOffsetsByTimestampStrategy") is not None:
        options.fail("startingOffsetsByTimestampStrategy", "needs startingTimestamp or startingOffsetsByTimestamp")
    text = options.text("startingOffsets")
    if text is None:
        return Edge("id", LATEST if mode == "stream" else EARLIEST)
    if text.lower() in ("earliest", LATEST_BY_KEY.lower(), LATEST_BY_GROUP.lower()):
        return Edge("id", EARLIEST)
    if text.lower() == "latest":
        if mode == "batch":
            options.fail("startingOffsets", "a batch that starts at the latest offset reads nothing")
        return Edge("id", LATEST)
    numbers = options.by_topic("startingOffsets", text, EARLIEST)
    if mode == "batch" and LATEST in numbers.values():
        options.fail("startingOffsets", "a batch that starts at the latest offset (-1) reads nothing")
    return Edge("id", by_topic=numbers)


def _latest_by_key(options: _Options, mode: Mode | None, *, in_bucket: bool) -> bool:
    text = (options.text("startingOffsets") or "").lower()
    name = next((name for name in (LATEST_BY_KEY, LATEST_BY_GROUP) if name.lower() == text), None)
    if name is None:
        return False
    if mode == "stream":
        options.fail("startingOffsets", f"{name} is of a batch: a stream has every record")
    if in_bucket:
        options.fail("startingOffsets", f"{name} seeks rows here and there, and a bucket has whole segments: use url")
    beside = ("startingTimestamp", "startingOffsetsByTimestamp", "minPartitions", "maxRecordsPerPartition")
    options.refuse(beside, f"{name} reads each topic from its beginning, in one task")
    return True


def _end(options: _Options) -> Edge:
    edge = _timed(options, "endingTimestamp", "endingOffsetsByTimestamp")
    if edge is not None:
        return edge
    text = options.text("endingOffsets")
    if text is None or text.lower() == "latest":
        return Edge("id", LATEST)
    if text.lower() == "earliest":
        options.fail("endingOffsets", "a batch that ends at the earliest offset reads nothing")
    return Edge("id", by_topic=options.by_topic("endingOffsets", text, LATEST))


def _timed(options: _Options, everywhere: str, by_topic: str) -> Edge | None:
    """Parse the options for a time. As with Kafka, a time for all topics overrides times by topic, and both override
    offsets."""
    at_ms = options.number(everywhere, 0)
    if at_ms is not None:
        return Edge("time", at_ms)
    text = options.text(by_topic)
    return None if text is None else Edge("time", by_topic=options.by_topic(by_topic, text, 0))
