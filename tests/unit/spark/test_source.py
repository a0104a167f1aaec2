"""The reader's methods that Spark calls, called without Spark: on a real broker, and on its data directory."""

import json
import pickle
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from tests.support.broker_process import BrokerProcess
from tests.support.logs import some_frames
from tests.support.sealed_history import upload
from toymq import ConnectFailed, sync
from toymq_py.errors import NoSuchTopic
from toymq_py.storage.segment import segment_name
from toymq_spark.datasource import ToymqDataSource
from toymq_spark.errors import DataLoss, OptionError
from toymq_spark.options import BrokerAddress, parse_source
from toymq_spark.record_sources import BrokerLogs
from toymq_spark.schema import source_schema
from toymq_spark.source import BatchReader, PushdownReader, StreamReader

COUNT = 2500


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("data") / "d", "--segment-bytes", "65536") as running:
        with sync.connect(url_of(running)) as client:
            for topic, count in (("numbers", COUNT), ("few", 10)):
                list(client.pub_many(topic, ((f"k{n}" if n % 3 else None, b"%d" % n) for n in range(count))))
        yield running


def url_of(broker: BrokerProcess) -> str:
    return f"toymq://127.0.0.1:{broker.port}"


def lower(options: dict[str, Any]) -> dict[str, str]:
    return {name.lower(): str(value) for name, value in options.items()}


@pytest.fixture(scope="module")
def buckets(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return buckets with the broker's segments: one with the sealed ones, and one with all."""
    with sync.connect(url_of(broker)) as client:
        for topic in ("numbers", "few"):
            assert client.topic_range(topic).incarnation is not None
    urls = {name: f"file://{tmp_path_factory.mktemp('bucket')}/{name}" for name in ("sealed", "all")}
    for name, url in urls.items():
        upload(broker.data_dir, url, tail=name == "all")
    return urls


@pytest.fixture(params=["wire", "directory", "wire and bucket", "bucket"])
def place(request: pytest.FixtureRequest, broker: BrokerProcess) -> dict[str, str]:
    """Return the options for the same records, read from each kind of source."""
    if "bucket" not in request.param:
        return {"url": url_of(broker)} if request.param == "wire" else {"path": str(broker.data_dir)}
    buckets = request.getfixturevalue("buckets")
    if request.param == "bucket":
        return {"path": buckets["all"]}
    return {"url": url_of(broker), "tierUrl": buckets["sealed"], "maxRecordsPerPartition": "400"}


def batch(place: dict[str, str], cls: type[BatchReader] = BatchReader, **options: Any) -> BatchReader:
    return cls(parse_source(lower({**place, **options}), "batch"), source_schema(include_headers=False))


STREAMS: list[StreamReader] = []


def stream(place: dict[str, str], **options: Any) -> StreamReader:
    reader = StreamReader(parse_source(lower({**place, **options}), "stream"), source_schema(include_headers=False))
    STREAMS.append(reader)
    return reader


@pytest.fixture(autouse=True)
def _stop_streams() -> Iterator[None]:
    yield
    while STREAMS:
        STREAMS.pop().stop()


def rows_of(reader: BatchReader | StreamReader, partitions: list[Any]) -> list[tuple[str, int, bytes | None, bytes]]:
    """Return the rows; each partition is read by a reader that was pickled, as on an executor."""
    found = []
    for partition in partitions:
        read = pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition)))
        for record_batch in read:
            assert isinstance(record_batch, pa.RecordBatch)
            found += [(row["topic"], row["offset"], row["key"], row["value"]) for row in record_batch.to_pylist()]
    return found


def numbers(start: int = 0, end: int = COUNT, topic: str = "numbers") -> list[tuple[str, int, bytes | None, bytes]]:
    return [(topic, n, b"k%d" % n if n % 3 else None, b"%d" % n) for n in range(start, end)]


def test_a_batch_reads_every_record_once(place: dict[str, str]) -> None:
    reader = batch(place, subscribe="numbers,few", minPartitions=7)
    partitions = reader.partitions()
    assert isinstance(partitions, list), "Spark takes nothing else"
    assert len(partitions) >= 7
    assert rows_of(reader, partitions) == numbers(0, 10, "few") + numbers()


def test_a_range_by_id_by_time_and_by_pattern(place: dict[str, str]) -> None:
    chosen = {"startingOffsets": '{"numbers": {"0": 5}}', "endingOffsets": '{"numbers": {"0": 1205}}'}
    reader = batch(place, subscribe="numbers", **chosen)
    assert rows_of(reader, reader.partitions()) == numbers(5, 1205)
    reader = batch(place, subscribePattern="f.*")
    assert rows_of(reader, reader.partitions()) == numbers(0, 10, "few")
    reader = batch(place, subscribe="few", endingTimestamp=1)
    assert rows_of(reader, reader.partitions()) == []
    with pytest.raises(NoSuchTopic):
        batch(place, subscribe="nowhere").partitions()


def pushed(place: dict[str, str], *filters: Filter) -> tuple[list[int], list[Filter]]:
    """Return the offsets that were read, and the filters that Spark still has to check."""
    reader = batch(place, PushdownReader, subscribe="numbers,few")
    assert isinstance(reader, PushdownReader)
    left = list(reader.pushFilters(list(filters)))
    return [offset for _, offset, _, _ in rows_of(reader, reader.partitions())], left


def test_filters_become_id_ranges(place: dict[str, str]) -> None:
    only = EqualTo(("topic",), "numbers")
    for filters, start, end in (
        ((GreaterThanOrEqual(("offset",), 2490),), 2490, COUNT),
        ((GreaterThan(("offset",), 2490), IsNotNull(("offset",))), 2491, COUNT),
        ((LessThan(("offset",), 4),), 0, 4),
        ((LessThanOrEqual(("offset",), 4), GreaterThan(("offset",), 1)), 2, 5),
        ((EqualTo(("offset",), 77),), 77, 78),
        ((EqualTo(("offset",), -1),), 0, 0),
        ((LessThan(("offset",), 9), LessThan(("offset",), 3)), 0, 3),
    ):
        assert pushed(place, only, *filters) == (list(range(start, end)), [])
    assert pushed(place, In(("topic",), ("few", "none")))[0] == list(range(10))
    assert pushed(place, only, EqualTo(("topic",), "few"))[0] == []
    now = datetime.now(UTC)
    late, early = GreaterThan(("timestamp",), now + timedelta(days=1)), LessThan(("timestamp",), now - timedelta(days=1))
    for one in (late, early):
        assert pushed(place, one) == ([], [one])
    since = GreaterThanOrEqual(("timestamp",), now - timedelta(days=1))
    by_key = [EqualTo(("key",), b"k1"), Not(EqualTo(("offset",), 1)), since]
    assert pushed(place, only, *by_key) == (list(range(COUNT)), by_key), "a log has no index of keys"


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("new_york")  # where the last second of 9999 is in the year 10000 of UTC
def test_times_that_no_record_has(place: dict[str, str]) -> None:
    """Filters and options with extreme times are valid: all records are before the year 9999, and none after it."""
    last, first = datetime(9999, 12, 31, 23, 59, 59), datetime(1, 1, 1)  # noqa: DTZ001
    for one, count in (
        (LessThan(("timestamp",), last), COUNT + 10),
        (LessThan(("timestamp",), last.replace(tzinfo=UTC)), COUNT + 10),
        (GreaterThan(("timestamp",), last), 0),
        (GreaterThan(("timestamp",), first.replace(tzinfo=UTC)), COUNT + 10),
        (LessThan(("timestamp",), first), 0),
    ):
        assert len(pushed(place, one)[0]) == count
    reader = batch(place, subscribe="few", endingTimestamp=253402300799999)
    assert len(rows_of(reader, reader.partitions())) == 10
    by_topic = f'{{"few": {{"0": {2**64 - 1}}}}}'
    reader = batch(place, subscribe="few", startingOffsetsByTimestamp=by_topic, startingOffsetsByTimestampStrategy="latest")
    assert rows_of(reader, reader.partitions()) == []
    with pytest.raises(OptionError, match="topic few has no record at or after 253402300799999 ms; starting"):
        batch(place, subscribe="few", startingTimestamp=253402300799999).partitions()


def test_only_the_worker_that_pushes_filters_has_a_reader_that_takes_them(broker: BrokerProcess) -> None:
    source = ToymqDataSource(lower({"url": url_of(broker), "subscribe": "few"}))
    assert not isinstance(source.reader(source.schema()), PushdownReader)


def test_a_schema_is_a_projection(place: dict[str, str]) -> None:
    options = parse_source(lower({**place, "subscribe": "few"}), "batch")
    reader = BatchReader(options, StructType([StructField("offset", LongType(), False), StructField("value", BinaryType())]))
    (only,) = [record_batch for partition in reader.partitions() for record_batch in reader.read(partition)]
    assert only.schema.names == ["offset", "value"]
    assert only.column("offset").to_pylist() == list(range(10))
    for field, named in (
        (StructField("ofset", LongType()), "unknown column ofset: the source has key, value"),
        (StructField("headers", StringType()), "unknown column headers without includeHeaders=true"),
        (StructField("offset", StringType()), "column offset is bigint, not string"),
        (StructField("key", BinaryType(), False), "column key may be null"),
    ):
        with pytest.raises(OptionError, match=named):
            BatchReader(options, StructType([field]))
    with pytest.raises(OptionError, match="the schema has no columns"):
        BatchReader(options, StructType([]))


def ids(at: dict[str, Any]) -> dict[str, int]:
    """Return offsets without incarnations."""
    return {topic: place["0"] for topic, place in at.items()}


def test_a_stream_goes_on_where_it_was(place: dict[str, str]) -> None:
    reader = stream(place, subscribe="numbers", startingOffsets="earliest", maxOffsetsPerTrigger=1000)
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(1000)
    at, found, batches = reader.initialOffset(), [], 0
    while (end := reader.latestOffset(at, limit)) != at:
        found += rows_of(reader, reader.partitions(at, end))
        at, batches = end, batches + 1
        if at == reader.reportLatestOffset():
            break
    assert (found, batches) == (numbers(), 4 if "tierUrl" in place else 3), "one ends with the segment"
    assert reader.partitions(at, at) == []


def test_a_stream_that_starts_at_the_end(place: dict[str, str]) -> None:
    assert ids(stream(place, subscribe="numbers").initialOffset()) == {"numbers": COUNT}
    assert ids(stream(place, subscribe="new-one").initialOffset()) == {"new-one": 0}, "it may wait for its topic"


def test_everything_at_once_whatever_the_options_say(place: dict[str, str]) -> None:
    reader = stream(place, subscribe="numbers", maxOffsetsPerTrigger=1, minOffsetsPerTrigger=10**6)
    assert ids(reader.latestOffset({"numbers": {"0": 0}}, ReadAllAvailable())) == {"numbers": COUNT}


def test_available_now_ends_at_what_was_there(tmp_path: Path) -> None:
    directory = directory_with(tmp_path, 5)
    reader = stream({"path": str(directory)}, subscribe="t", maxOffsetsPerTrigger=3)
    reader.prepareForTriggerAvailableNow()
    directory_with(tmp_path, 9)
    at, ends = {"t": {"0": 0}}, []
    for _ in range(3):
        at = reader.latestOffset(at, ReadMaxRows(3))
        ends.append(at["t"]["0"])
    assert ends == [3, 5, 5]
    assert reader.reportLatestOffset() == {"t": {"0": 5}}


def test_few_records_wait_for_more_or_for_the_delay(tmp_path: Path) -> None:
    directory, now = directory_with(tmp_path, 5), [0.0]
    options = {"path": str(directory), "subscribe": "t", "minOffsetsPerTrigger": 8, "maxTriggerDelay": "10s"}
    reader = StreamReader(parse_source(lower(options), "stream"), source_schema(False), monotonic=lambda: now[0])
    start, limit = {"t": {"0": 0}}, reader.getDefaultReadLimit()
    assert limit == ReadMinRows(8)
    assert reader.latestOffset(start, limit) == start
    now[0] = 10.0
    assert reader.latestOffset(start, limit) == {"t": {"0": 5}}, "the delay is over"
    assert reader.latestOffset({"t": {"0": 2}}, limit) == {"t": {"0": 2}}, "and begins anew"
    directory_with(tmp_path, 10)
    assert reader.latestOffset({"t": {"0": 2}}, limit) == {"t": {"0": 10}}


def directory_with(tmp_path: Path, count: int, first_id: int = 0) -> Path:
    """Make a data directory of one topic ``t`` with one segment."""
    topic = tmp_path / "topics" / "t"
    topic.mkdir(parents=True, exist_ok=True)
    for old in topic.iterdir():
        old.unlink()
    frames = some_frames(count - first_id, first_id=first_id)
    (topic / segment_name(first_id)).write_bytes(b"".join(frames))
    return tmp_path


def test_retention_that_overtakes_a_query_while_it_reads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = directory_with(tmp_path, 9)
    failing = stream({"path": str(directory)}, subscribe="t")
    going_on = stream({"path": str(directory)}, subscribe="t", failOnDataLoss="false")
    partitions = failing.partitions({"t": {"0": 2}}, {"t": {"0": 9}})
    directory_with(tmp_path, 12, first_id=6)
    with pytest.raises(DataLoss, match="topic t: records 2 to 5 are gone: retention removed them while they were read"):
        rows_of(failing, partitions)
    assert [offset for _, offset, _, _ in rows_of(going_on, partitions)] == [6, 7, 8]
    assert "records 2 to 5 are gone" in caplog.text


def test_a_topic_that_is_deleted_while_a_query_reads_is_a_loss_like_any_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Found: the error was NO_SUCH_TOPIC, which ended the query whatever failOnDataLoss said."""
    directory = directory_with(tmp_path, 9)
    failing = stream({"path": str(directory)}, subscribe="t")
    going_on = stream({"path": str(directory)}, subscribe="t", failOnDataLoss="false")
    partitions = failing.partitions({"t": {"0": 2}}, {"t": {"0": 9}})
    shutil.rmtree(directory / "topics" / "t")
    with pytest.raises(DataLoss, match="topic t: records 2 to 8 are gone: the topic was deleted while they were read"):
        rows_of(failing, partitions)
    assert rows_of(going_on, partitions) == []
    assert "topic t: records 2 to 8 are gone" in caplog.text


@pytest.mark.parametrize("chosen", [{"subscribe": "t"}, {"subscribePattern": "t.*"}], ids=str)
@pytest.mark.parametrize("once", [False, True])
def test_a_topic_that_was_deleted_is_a_loss_however_it_was_chosen(
    chosen: dict[str, str], once: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = directory_with(tmp_path, 9)
    shutil.rmtree(directory / "topics" / "t")
    failing = stream({"path": str(directory)}, **chosen)
    going_on = stream({"path": str(directory)}, failOnDataLoss="false", **chosen)
    at = {"t": {"0": 5}, "other": {"0": 3}}
    for reader in (failing, going_on):
        if once:
            reader.prepareForTriggerAvailableNow()
        gone = 0 if "subscribePattern" in chosen else 3  # one that is no longer asked for stays where it is
        assert reader.latestOffset(at, ReadAllAvailable()) == {"t": {"0": 0}, "other": {"0": gone}}
    end = {"t": {"0": 0}}
    with pytest.raises(DataLoss, match=r"topic t: records from 5 on are gone: the topic was deleted \(failOn"):
        failing.partitions({"t": {"0": 5}}, end)
    assert going_on.partitions({"t": {"0": 5}}, end) == []
    assert "topic t: records from 5 on are gone: the topic was deleted; continuing" in caplog.text
    directory_with(tmp_path, 2)
    assert rows_of(going_on, going_on.partitions(end, {"t": {"0": 2}}))[0][1] == 0, "one of that name begins anew"


def test_damage_in_the_middle_is_a_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = directory_with(tmp_path, 9)
    segment = directory / "topics" / "t" / segment_name(0)
    data = bytearray(segment.read_bytes())
    data[sum(map(len, some_frames(9)[:4])) + 25] ^= 1
    segment.write_bytes(data)
    options = {"path": str(directory), "subscribe": "t"}
    failing, going_on = batch({}, **options), batch({}, failOnDataLoss="false", **options)
    with pytest.raises(DataLoss, match="record 4 is gone: the log holds no record of them"):
        rows_of(failing, failing.partitions())
    assert [offset for _, offset, _, _ in rows_of(going_on, going_on.partitions())] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert "record 4 is gone" in caplog.text


def test_a_broker_that_comes_back_in_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pauses: list[float] = []
    with BrokerProcess(tmp_path / "d") as running:
        with sync.connect(url_of(running)) as client:
            client.pub("t", b"x")

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 2:
                running.start()

        logs = BrokerLogs(BrokerAddress(url_of(running), num_retries=3, retry_interval_ms=100), sleep)
        assert logs.bounds("t")[:2] == (0, 1)
        running.restart()
        assert logs.bounds("t")[:2] == (0, 1), "a connection that was lost is made again"
        logs.close()
        running.kill()
        assert logs.bounds("t")[:2] == (0, 1)
        assert pauses == [0.1, 0.2]
        logs.close()
        running.kill()
        logs = BrokerLogs(BrokerAddress(url_of(running), num_retries=1, retry_interval_ms=0), lambda _: None)
        with pytest.raises(ConnectFailed):
            logs.bounds("t")
    assert "reading t failed" in caplog.text


def test_news_ends_the_wait(broker: BrokerProcess) -> None:
    """The request for the newest id waits up to a second at the broker, not in a sleep; a new record ends it."""
    reader = stream({"url": url_of(broker)}, subscribe="fresh")
    asked: list[str] = []
    logs = reader._open()
    ask = logs.wait

    def wait(topic: str, next_id: int, seconds: float) -> None:
        asked.append(topic)
        with sync.connect(url_of(broker)) as client:
            client.pub("fresh", b"x")
        ask(topic, next_id, seconds)

    logs.wait = wait  # type: ignore[method-assign]
    assert ids(reader.latestOffset({"fresh": {"0": 0}}, ReadAllAvailable())) == {"fresh": 1}
    assert asked == ["fresh"]


@pytest.mark.parametrize("place", ["wire", "directory"], indirect=True)
def test_a_pattern_without_a_topic_waits_for_one(place: dict[str, str], broker: BrokerProcess) -> None:
    pauses: list[float] = []
    wanted = f"later-{'url' in place}"

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            with sync.connect(url_of(broker)) as client:
                client.pub(wanted, b"x")

    options = parse_source(lower({**place, "subscribePattern": wanted}), "stream")
    reader = StreamReader(options, source_schema(False), sleep=sleep)
    STREAMS.append(reader)
    assert reader.initialOffset() == {}
    assert ids(reader.latestOffset({}, ReadAllAvailable())) == {wanted: 1}
    assert len(pauses) == 3


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("count", [2, 5, 9], ids=["fewer", "as many", "more"])
def test_a_topic_made_anew_is_never_read_as_the_old_one(
    broker: BrokerProcess, restarted: bool, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Found: a query at id 5 went on at id 5 of the new topic, and never read its first five records."""
    topic = f"anew-{restarted}-{count}"
    with sync.connect(url_of(broker)) as client:
        list(client.pub_many(topic, [b"old"] * 5))
        options = {"subscribe": topic, "startingOffsets": "earliest"}
        failing, going_on = (stream({"url": url_of(broker)}, failOnDataLoss=word, **options) for word in ("true", "false"))
        at = failing.latestOffset(failing.initialOffset(), ReadAllAvailable())
        assert [value for *_, value in rows_of(going_on, going_on.partitions(failing.initialOffset(), at))] == [b"old"] * 5
        planned = failing.partitions(failing.initialOffset(), at)
        old = client.topic_range(topic).incarnation
        client.delete(topic)
        list(client.pub_many(topic, [b"new"] * count))
        new = client.topic_range(topic).incarnation
    at = json.loads(json.dumps(at))  # as in the checkpoint
    if restarted:
        failing, going_on = (stream({"url": url_of(broker)}, failOnDataLoss=word, **options) for word in ("true", "false"))
    end = failing.latestOffset(at, ReadAllAvailable())
    assert ids(end) == {topic: count}
    why = f"the topic was deleted and made anew, its incarnation was {old} and is {new}"
    said = f"topic {topic}: records from 5 on are gone: {why}"
    with pytest.raises(DataLoss, match=said):
        failing.partitions(at, end)
    assert [value for *_, value in rows_of(going_on, going_on.partitions(at, end))] == [b"new"] * count
    assert said in caplog.text
    assert going_on.latestOffset(end, ReadMaxRows(1)) == end, "and it is told once"
    with pytest.raises(DataLoss, match="records 0 to 4 are gone: the topic was deleted while they were read"):
        rows_of(failing, planned)
    assert rows_of(going_on, planned) == [], "tasks that were planned before read nothing of the new one"
