"""Readers of a topic whose history is in a bucket, called without Spark: which task reads where, and what counts as a loss."""

import itertools
import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.e2e.test_tier import s3, settled
from tests.support.broker_process import BrokerProcess, run
from tests.support.requirements import require
from tests.support.sealed_history import upload
from toymq import sync
from toymq_py.tier.bucket import BucketError
from toymq_py.tier.keys import Place, segment_key
from toymq_py.tier.reader import open_reader
from toymq_py.tier.states import IDS_LEFT_OUT
from toymq_spark.errors import DataLoss
from toymq_spark.metrics import progress_of
from toymq_spark.options import parse_source
from toymq_spark.schema import source_schema
from toymq_spark.source import BatchReader, StreamReader

__all__ = ["s3"]  # a fixture
COUNT = 400
"""Records of a kilobyte: six sealed segments, and a tail."""
NUMBERS = itertools.count()
ALONE = {"url": None, "tierUrl": None}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("data") / "d", "--segment-bytes", "65536") as running:
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[sync.Client]:
    with sync.connect(url_of(broker)) as connected:
        yield connected


def url_of(broker: BrokerProcess) -> str:
    return f"toymq://127.0.0.1:{broker.port}"


class History:
    """A broker's topic, and a bucket with its sealed segments."""

    def __init__(self, topic: str, broker: BrokerProcess, client: sync.Client, root: Path) -> None:
        self.topic, self._client, self._broker = topic, client, broker
        self.root = root / "bucket"
        self.url = f"file://{self.root}"
        self.publish(0, COUNT)
        self.readers: list[StreamReader] = []

    def publish(self, start: int, end: int) -> None:
        list(self._client.pub_many(self.topic, (b"%d " % n + b"x" * 1000 for n in range(start, end))))
        self.place = Place(self.topic, self._client.topic_range(self.topic).incarnation or "")
        upload(self._broker.data_dir, self.url, tail=False)
        segments = open_reader(self.url).segments(self.place)
        self.first_ids = [each.first_id for each in segments]
        self.sealed = segments[-1].next_id

    def options(self, **more: Any) -> dict[str, str]:
        given = {"url": url_of(self._broker), "tierUrl": self.url, "maxRecordsPerPartition": 100} | more
        given = {name: value for name, value in given.items() if value is not None}
        return {name.lower(): str(value) for name, value in (given | {"subscribe": self.topic}).items()}

    def batch(self, **more: Any) -> BatchReader:
        return BatchReader(parse_source(self.options(**more), "batch"), source_schema(include_headers=False))

    def stream(self, **more: Any) -> StreamReader:
        more = {"startingOffsets": "earliest"} | more
        reader = StreamReader(parse_source(self.options(**more), "stream"), source_schema(include_headers=False))
        self.readers.append(reader)
        return reader

    def plan(self, **more: Any) -> list[Any]:
        return [partition.span for partition in self.batch(**more).partitions()]  # type: ignore[attr-defined]


@pytest.fixture
def history(
    broker: BrokerProcess, client: sync.Client, tmp_path: Path
) -> Iterator[History]:
    made = History(f"case-{next(NUMBERS)}", broker, client, tmp_path)
    yield made
    for reader in made.readers:
        reader.stop()
    client.delete(made.topic)


def read(reader: BatchReader | StreamReader, partitions: list[Any]) -> list[int]:
    """Return the offsets that executors would read; each value must match its own."""
    found = []
    for partition in partitions:
        for batch in pickle.loads(pickle.dumps(reader)).read(pickle.loads(pickle.dumps(partition))):
            rows = batch.to_pylist()
            assert all(int(row["value"].split()[0]) == row["offset"] for row in rows)
            found += [row["offset"] for row in rows]
    return found


def test_a_batch_reads_sealed_segments_in_the_bucket_and_the_tail_from_the_broker(
    history: History, caplog: pytest.LogCaptureFixture
) -> None:
    reader = history.batch()
    partitions = reader.partitions()
    in_bucket = [part.span for part in partitions if part.span.segments]  # type: ignore[attr-defined]
    assert [first_id for span in in_bucket for first_id in span.segments] == history.first_ids
    assert 0 < history.sealed < COUNT
    said = f"topic {history.topic}: records 0 to {history.sealed - 1} come from {history.url}, in {len(in_bucket)} tasks"
    assert caplog.messages[0] == said
    assert f"records {history.sealed} to {COUNT - 1} come from the broker" in caplog.messages[1]
    assert read(reader, partitions) == [*range(COUNT)]
    assert not any(span.segments for span in history.plan(tier="broker"))
    assert not any(span.segments for span in history.plan(maxRecordsPerPartition=None)), "what a task reads is not looked up"
    only = history.batch(tier="bucket")
    assert read(only, only.partitions()) == [*range(history.sealed)]
    alone = history.batch(**ALONE, path=history.url)
    assert read(alone, alone.partitions()) == [*range(history.sealed)]


def test_tasks_in_the_bucket_need_no_broker(history: History) -> None:
    reader = history.batch()
    partitions = [part for part in reader.partitions() if part.span.segments]  # type: ignore[attr-defined]
    options = history.options(url="toymq://127.0.0.1:1", **{"fetchOffset.numRetries": 0})
    elsewhere = BatchReader(parse_source(options, "batch"), source_schema(include_headers=False))
    assert read(elsewhere, partitions) == [*range(history.sealed)]


def test_a_stream_goes_over_the_border_and_its_offsets_say_where_it_is(history: History) -> None:
    reader = history.stream()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    topic, incarnation = history.topic, history.place.incarnation
    assert end == {topic: {"0": COUNT, "bucket": history.sealed, "incarnation": incarnation}}
    assert list(end[topic]) == ["0", "bucket", "incarnation"], "Spark compares them as strings"
    planned = reader.partitions(start, end)
    assert read(reader, planned) == [*range(COUNT)]
    assert reader.latestOffset(end, ReadAllAvailable()) == end, "without news the offset stays, and no batch is run"
    history.publish(COUNT, COUNT + 5)
    later = reader.latestOffset(end, ReadAllAvailable())
    assert later == {topic: {"0": COUNT + 5, "incarnation": incarnation}}, "the tail comes from the broker"
    assert read(reader, reader.partitions(end, later)) == [*range(COUNT, COUNT + 5)]


def test_a_batch_that_is_run_again_has_the_same_tasks(history: History) -> None:
    """A sink recognizes a task's rows by the task (ADR 0016); meanwhile more segments were uploaded."""
    reader = history.stream()
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    spans = [part.span for part in reader.partitions(start, end)]
    history.publish(COUNT, 2 * COUNT)
    start, end = json.loads(json.dumps(start)), json.loads(json.dumps(end))  # as in the checkpoint
    again = history.stream()
    assert [part.span for part in again.partitions(start, end)] == spans
    assert history.sealed > end[history.topic]["bucket"]
    old = {history.topic: {name: value for name, value in end[history.topic].items() if name != "bucket"}}
    planned = again.partitions(start, old)
    assert not any(part.span.segments for part in planned), "a checkpoint of a toymq before reads it from the broker, as then"
    assert read(again, planned) == [*range(COUNT)]


@pytest.mark.parametrize("alone", [False, True])
def test_a_limited_batch_ends_with_a_segment(history: History, alone: bool) -> None:
    place: dict[str, Any] = {**ALONE, "path": history.url} if alone else {}
    reader = history.stream(maxOffsetsPerTrigger=150, **place)
    at: dict[str, Any] = reader.initialOffset()
    ends, found = [0], []
    while ends[-1] < (history.sealed if alone else COUNT):
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        found += read(reader, reader.partitions(at, end))
        ends.append(end[history.topic]["0"])
        at = end
    assert found == [*range(ends[-1])]
    assert {end for end in ends if end < history.sealed} <= {*history.first_ids}
    assert len(ends) > 3


@pytest.mark.parametrize("how", ["gone", "cut short", "changed"])
def test_an_object_that_is_lost_is_read_from_the_broker_while_it_has_it(
    history: History, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader, only = history.batch(), history.batch(tier="bucket")
    going_on = history.batch(tier="bucket", failOnDataLoss="false")
    partitions, of_bucket = reader.partitions(), only.partitions()
    first_id, next_id = history.first_ids[2:4]
    file = history.root / segment_key(history.place, first_id)
    data = file.read_bytes()
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(data[:-7] if how == "cut short" else data[:99] + b"?" + data[100:])
    assert read(reader, partitions) == [*range(COUNT)]
    why = "is gone from the bucket" if how == "gone" else "in the bucket is damaged"
    named = f"{segment_key(history.place, first_id)} {why}"
    assert named in caplog.text
    assert f"records {first_id} to {next_id - 1} are read from the broker" in caplog.text
    with pytest.raises(DataLoss, match=f"topic .*: records {first_id} to {next_id - 1} are gone: {named}"):
        read(only, of_bucket)
    rest = [*range(first_id), *range(next_id, history.sealed)]
    assert read(going_on, of_bucket) == rest
    if how != "gone":  # else it is not listed, either
        assert read(going_on, going_on.partitions()) == rest, "also when it was so before"


def test_a_topic_that_is_deleted_while_a_query_reads(
    history: History, client: sync.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """The deleted topic's objects are removed, and a topic made anew has others."""
    failing, going_on = history.batch(), history.batch(failOnDataLoss="false")
    partitions, old = failing.partitions(), history.place
    client.delete(history.topic)
    shutil.rmtree(history.root / history.topic)
    history.publish(0, COUNT)
    assert history.place != old
    end = partitions[0].span.end - 1  # type: ignore[attr-defined]
    with pytest.raises(DataLoss, match=f"records 0 to {end} are gone: the topic was deleted while they were read"):
        read(failing, partitions)
    assert read(going_on, partitions) == []
    assert "are gone: the topic was deleted" in caplog.text
    assert read(failing, failing.partitions()) == [*range(COUNT)]


def test_a_stream_of_a_bucket_alone_whose_topic_was_made_anew(history: History, client: sync.Client) -> None:
    alone = {**ALONE, "path": history.url}
    reader = history.stream(**alone)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end[history.topic]["bucket"] == end[history.topic]["0"] == history.sealed
    old = history.place.incarnation
    client.delete(history.topic)
    shutil.rmtree(history.root / history.topic)
    history.publish(0, COUNT)
    again = history.stream(**alone)
    news = again.latestOffset(end, ReadAllAvailable())
    with pytest.raises(DataLoss, match=f"its incarnation was {old} and is {history.place.incarnation}"):
        again.partitions(end, news)
    going_on = history.stream(failOnDataLoss="false", **alone)
    assert read(going_on, going_on.partitions(end, news)) == [*range(history.sealed)]


def test_a_bucket_that_goes_away_ends_the_batch_by_name_and_is_no_loss(history: History) -> None:
    for options in ({}, {"failOnDataLoss": "false"}, {"failOnDataLoss": "false", "tier": "bucket"}):
        reader = history.batch(**options)
        partitions = reader.partitions()
        history.root.rename(history.root.with_name("away"))
        for ask in (lambda: read(reader, partitions), lambda: reader.partitions()):  # noqa: B023 (called at once)
            with pytest.raises(BucketError, match=f"^{history.url}: the bucket: the directory .* is gone: mount its"):
                ask()
        history.root.mkdir()  # as the directory below a mount
        if options:
            with pytest.raises(BucketError, match="the bucket is empty: is its file system mounted"):
                read(reader, [partitions[0]])
        history.root.rmdir()
        history.root.with_name("away").rename(history.root)
        assert read(reader, partitions)[:3] == [0, 1, 2], "and the same tasks go on when it is back"


def test_a_restored_topic_has_no_loss_but_what_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Ids that a restore skips count as removed (ADR 0165), and so do those that a repair accepts as lost. Broker and directory
    agree, in few tasks; a bucket alone does not know of a repair."""
    url, again = f"file://{tmp_path}/bucket", tmp_path / "again"
    with BrokerProcess(tmp_path / "d", "--tier", url, "--segment-bytes", "65536") as broker:
        with sync.connect(url_of(broker)) as client:
            list(client.pub_many("orders", (b"%d " % n + b"x" * 1000 for n in range(COUNT))))
        settled(url, tmp_path / "d")
        broker.stop()
    assert run("restore", url, str(again)).returncode == 1

    def batch(**options: str) -> BatchReader:
        given = {"subscribe": "orders", "maxrecordsperpartition": "100"} | options
        return BatchReader(parse_source(given, "batch"), source_schema(include_headers=False))

    directory, going_on = batch(path=str(again)), batch(path=str(again), failondataloss="false")
    sealed = read(going_on, going_on.partitions())[-1]
    lost = f"records {sealed + 1} to {COUNT - 1} are gone: the log holds no record of them"
    with pytest.raises(DataLoss, match=lost):
        read(directory, directory.partitions())
    run("repair", str(again))
    with BrokerProcess(again, "--tier", url, "--segment-bytes", "65536") as broker:
        with sync.connect(url_of(broker)) as client:
            first = client.describe("orders")["next_id"]
            assert first >= COUNT + IDS_LEFT_OUT
            assert client.describe("orders")["removed"] == [[sealed + 1, first - 1]]
            list(client.pub_many("orders", (b"%d " % n + b"x" * 1000 for n in range(first, first + COUNT))))
        settled(url, again)
        expected = [*range(sealed + 1), *range(first, first + COUNT)]
        kept = open_reader(url).topic("orders").next_id
        assert first < kept < first + COUNT
        caplog.clear()
        for options in (
            {"url": url_of(broker)}, {"url": url_of(broker), "tierurl": url}, {"path": str(again)},
            {"url": url_of(broker), "tierurl": url, "tier": "bucket"},
        ):  # fmt: skip
            for cuts in ({}, {"minpartitions": "3"}):
                reader = batch(**options, **cuts)
                partitions = reader.partitions()
                found = [read(reader, [part]) for part in partitions]
                assert all(found), "no task is empty"
                in_bucket = options.get("tier") == "bucket"
                assert [*itertools.chain(*found)] == [offset for offset in expected if not in_bucket or offset < kept]
        assert not [record for record in caplog.records if record.levelname == "WARNING"]
        alone = batch(path=url)  # what was given up by a repair of one directory stays in the bucket's account of the topic
        with pytest.raises(DataLoss, match=f"records {sealed + 1} to {COUNT - 1} are gone: the bucket has no segment of them"):
            read(alone, alone.partitions())
        alone = batch(path=url, failondataloss="false")
        assert read(alone, alone.partitions()) == [offset for offset in expected if offset < kept]
        assert len([record for record in caplog.records if "are gone" in record.message]) == 1, "one line, of these ids alone"
        given = {"url": url_of(broker), "subscribe": "orders", "startingoffsets": "earliest", "maxoffsetspertrigger": "300"}
        stream = StreamReader(parse_source(given, "stream"), source_schema(include_headers=False))
        at, offsets, batches = stream.initialOffset(), [], 0
        while (end := stream.latestOffset(at, stream.getDefaultReadLimit())) != at:
            offsets += read(stream, stream.partitions(at, end))
            at, batches = end, batches + 1
        stream.stop()
        assert offsets == expected
        assert batches == 3
        check_backlog(url_of(broker), sealed, first)


def check_backlog(url: str, sealed: int, first: int) -> None:
    """Check that a query neither waits for the ids that the restore skipped nor counts them: ``COUNT`` records follow."""
    now = [0.0]

    def stream(**options: str) -> StreamReader:
        given = {"url": url, "subscribe": "orders", "maxtriggerdelay": "1h"} | options
        return StreamReader(parse_source(given, "stream"), source_schema(include_headers=False), monotonic=lambda: now[0])

    at = {"orders": {"0": sealed + 1}}
    waiting = stream(minoffsetspertrigger=str(COUNT + 1))
    assert waiting.latestOffset(at, waiting.getDefaultReadLimit()) == at, "ten million ids are no records"
    latest = waiting.reportLatestOffset()
    source = {"endOffset": at, "latestOffset": json.dumps(latest)}
    assert progress_of({"id": "i", "batchId": 1, "sources": [source]}).behind == {"orders": COUNT}
    now[0] = 3601.0
    assert waiting.latestOffset(at, waiting.getDefaultReadLimit()) != at, "the delay is over"
    enough = stream(minoffsetspertrigger=str(COUNT))
    end = enough.latestOffset(at, enough.getDefaultReadLimit())
    assert end["orders"]["0"] == first + COUNT
    latest = enough.reportLatestOffset()
    assert latest is not None
    assert "removed" not in latest["orders"], "nothing is left unread"
    waiting.stop()
    enough.stop()


@require("s3")
def test_a_bucket_over_http(tmp_path: Path, s3: str) -> None:
    """Read what a broker uploaded to a server of the S3 protocol, with credentials from the environment."""
    with BrokerProcess(tmp_path / "d", "--tier", s3, "--segment-bytes", "65536", executed=True) as broker:
        with sync.connect(url_of(broker)) as client:
            list(client.pub_many("orders", (b"%d " % n + b"x" * 1000 for n in range(COUNT))))
            client.topic_range("orders")
        settled(s3, tmp_path / "d")
        given = {"url": url_of(broker), "tierurl": s3, "subscribe": "orders", "maxrecordsperpartition": "100"}
        reader = BatchReader(parse_source(given, "batch"), source_schema(include_headers=False))
        partitions = reader.partitions()
        assert sum(bool(part.span.segments) for part in partitions) >= 4  # type: ignore[attr-defined]
        assert read(reader, partitions) == [*range(COUNT)]
    alone = BatchReader(parse_source({"path": s3, "subscribe": "orders"}, "batch"), source_schema(include_headers=False))
    found = read(alone, alone.partitions())
    assert found == [*range(len(found))], "the broker is gone, and its history is there"
    assert len(found) > COUNT - 100
    late = {"path": s3, "subscribe": "orders", "startingtimestamp": "9" * 15, "startingoffsetsbytimestampstrategy": "latest"}
    none = BatchReader(parse_source(late, "batch"), source_schema(include_headers=False))
    assert read(none, none.partitions()) == []
