"""The pipeline's jobs: topics to files and back, and verification that everything is there."""

import hashlib
import json
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.conftest import WAIT_S
from tests.spark.test_spark import records
from tests.support.broker_process import BrokerProcess
from tests.support.requirements import require
from tests.unit.spark.test_ledgers import MALFORMED, WELL_FORMED, line
from toymq import sync
from toymq_py.errors import ConfigError, DamagedData, NoSuchTopic
from toymq_spark import cli
from toymq_spark.jobs import archive, compact, replay, report, verify, watch
from toymq_spark.manifest import Archive, ArchiveMismatch
from toymq_spark.schema import source_schema
from toymq_spark.sink import QUERY_ID

pytestmark = require("java")

TOPIC = "__HIVE_DEFAULT_PARTITION__"
"""As a directory it would stand for no topic at all."""


def publish(client: sync.Client, topic: str, start: int, end: int) -> None:
    list(client.pub_many(topic, ((f"k{n}" if n % 2 else None, b"%d" % n) for n in range(start, end))))


def seen_by_pyarrow(to: Path) -> list[tuple[int, bytes]]:
    table = Archive(to).dataset().to_table()
    columns = set(source_schema(include_headers=True).fieldNames())
    assert set(table.column_names) == columns | {"date"}
    assert set(table.column("topic").to_pylist()) == {TOPIC}
    assert table.column("date").to_pylist() == [at.date() for at in table.column("timestamp").to_pylist()]
    return sorted(zip(*(table.column(name).to_pylist() for name in ("offset", "value")), strict=True))


def test_archive_compact_replay(spark: SparkSession, url: str, client: sync.Client, tmp_path: Path) -> None:
    publish(client, TOPIC, 0, 500)
    client.pub(TOPIC, b"500", headers={"Trace": "1-2"})
    to = tmp_path / "an {archive,}[of] a*"
    planned = tmp_path / "checkpoint"
    (planned / "offsets").mkdir(parents=True)
    topic = spark.read.format("toymq").options(url=url, subscribe=TOPIC, includeHeaders="true").load()

    def write(number: int, start: int, query: str = "q") -> None:
        """Write a batch as the stream does."""
        rows = topic.where(f"offset >= {start} AND offset < {start + 300}")
        (planned / "offsets" / str(number)).touch()
        spark.sparkContext.setLocalProperty(QUERY_ID, query)
        try:
            archive.write_batch(Archive(to), planned, archive.dated(rows), number)
        finally:
            spark.sparkContext.setLocalProperty(QUERY_ID, None)  # type: ignore[arg-type]

    write(0, 0)
    write(1, 300)
    expected = [(n, b"%d" % n) for n in range(501)]
    assert seen_by_pyarrow(to) == expected

    # The driver died, and Spark runs the second batch again: after its manifest was in place, and before.
    write(1, 300)
    assert seen_by_pyarrow(to) == expected
    (to / "manifest" / "0000000001.json").unlink()
    assert seen_by_pyarrow(to) == expected[:300], "files without a manifest are not there"
    write(1, 300)
    assert seen_by_pyarrow(to) == expected
    assert [row.value for row in archive.read(spark, to).orderBy("offset").collect()] == [value for _, value in expected]

    # A replay that dies in its second piece, and goes on; its files are compacted and removed meanwhile.
    sink, state, pauses = {"url": url, "topic": "from-files"}, tmp_path / "state", list[float]()
    steps = replay.replay(spark, to, sink, state, rate=300, monotonic=lambda: 0.0, sleep=pauses.append)
    assert next(steps) == replay.Progress(1, 2, 300, 501)

    done = compact.compact(spark, to, now_ms=1000, grace_ms=50)
    assert (done.merged, done.made, done.rows, done.removed) == (2, 1, 501, 0)
    assert seen_by_pyarrow(to) == expected
    assert [file.rows for file in Archive(to).files()] == [501]
    (to / "data" / "batch=compact-0000000001.died").mkdir()
    assert compact.compact(spark, to, now_ms=1049, grace_ms=50).removed == 0
    assert compact.compact(spark, to, now_ms=1050, grace_ms=50) == compact.Compacted(0, 0, 2, 0)
    assert not (to / "data" / "batch=compact-0000000001.died").exists()
    assert len(list((to / "data").rglob("*.parquet"))) == 1
    assert seen_by_pyarrow(to) == expected

    next(steps)
    (state / "done.json").write_text('{"pieces": 1}')  # it had not been written yet
    assert [step.piece for step in replay.replay(spark, to, sink, state, rate=300)] == [2]
    assert pauses == [1.0], "300 rows took no time, and a second is theirs"
    copied = records(client, "from-files")
    assert sorted(int(frame.payload) for frame in copied) == list(range(501))
    back = spark.read.format("toymq").options(url=url, subscribe="from-files", includeHeaders="true").load()
    found = {int(row.value): (row.key, row.headers) for row in back.collect()}
    assert all(found[n] == (b"k%d" % n if n % 2 else None, None) for n in range(500))
    assert [(header.key, header.value) for header in found[500][1]] == [("Trace", b"1-2")]
    with pytest.raises(ConfigError, match="belongs to another replay"):
        list(replay.replay(spark, to, {**sink, "topic": "other"}, state, rate=300))

    with pytest.raises(ArchiveMismatch, match="has a batch 0 of another query"):
        write(0, 0, query="another checkpoint")


@pytest.mark.spark_slow
def test_a_range_of_a_topic_is_replayed_in_pieces(spark: SparkSession, url: str, client: sync.Client, tmp_path: Path) -> None:
    publish(client, "ranged", 0, 300)
    source = {
        "url": url, "subscribe": "ranged", "startingOffsetsByTimestamp": '{"ranged": {"0": 0}}',
        "startingOffsetsByTimestampStrategy": "latest", "endingOffsets": '{"ranged": {"0": 200}}',
    }  # fmt: skip
    steps = replay.replay(spark, source, {"url": url, "topic": "range"}, tmp_path, rate=100, sleep=lambda _: None)
    assert [(step.piece, step.pieces, step.rows) for step in steps] == [(1, 2, 100), (2, 2, 200)]
    assert sorted(int(frame.payload) for frame in records(client, "range")) == list(range(200))


@pytest.mark.spark_slow
def test_a_report_in_utc_wherever_it_is_made(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    records = spark.sql("""
        SELECT CAST(k AS BINARY) AS key, CAST(v AS BINARY) AS value, topic, offset, CAST(at AS TIMESTAMP) AS timestamp,
            IF(reason IS NULL, NULL, transform(
                filter(array(struct('toymq-reason' AS key, reason AS value), struct('toymq-attempts' AS key, tries AS value),
                    struct('toymq-error-type' AS key, error AS value)), one -> one.value IS NOT NULL),
                one -> named_struct('key', one.key, 'value', CAST(one.value AS BINARY)))) AS headers
        FROM VALUES ('a', 'x', 't', 5L, '2026-01-01T00:00:10Z', NULL, NULL, NULL),
            ('b', 'xxxx', 't', 6L, '2026-01-01T00:00:50Z', NULL, NULL, NULL),
            (NULL, 'xx', 't', 9L, '2026-01-01T00:07:00Z', NULL, NULL, NULL),
            ('a', 'x', 't.dlq', 0L, '2026-01-01T00:01:00Z', 'bad', '2', 'KeyError'),
            ('b', 'x', 't.dlq', 1L, '2026-01-01T00:01:00Z', 'bad', '5', 'KeyError'),
            ('c', 'x', 't.dlq', 2L, '2026-01-01T00:01:00Z', 'bad', '1', NULL),
            ('b', 'x', CAST(NULL AS STRING), 3L, '2026-01-01T00:01:00Z', NULL, NULL, NULL)
            AS (k, v, topic, offset, at, reason, tries, error)
    """)
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        found = report.report(records, "1 minute")
    finally:
        monkeypatch.undo()
        time.tzset()

    def at(minute: int, second: int = 0) -> datetime:
        return datetime(2026, 1, 1, 0, minute, second, tzinfo=UTC)

    dead, live = {"topic": "t.dlq", "records": 3, "bytes": 3, "median": 1, "largest": 1, "keys": 3}, {"topic": "t"}
    named = {"topic": "__HIVE_DEFAULT_PARTITION__", "records": 1, "bytes": 1, "median": 1, "largest": 1, "keys": 1}
    whole, gap = {"gaps": 0, "gap_ids": 0}, {"gaps": 1, "gap_ids": 2}
    first, last = {"records": 2, "bytes": 5, "largest": 4, "median": 1, "keys": 2}, {"bytes": 2, "largest": 2, "median": 2}
    assert found.windows == [
        {**named, **whole, "start": at(1), "end": at(2), "per_s": 1 / 60},
        {**live, **whole, **first, "start": at(0), "end": at(1), "per_s": 1 / 30},
        {**live, **gap, **last, "start": at(7), "end": at(8), "per_s": 1 / 60, "records": 1, "keys": 0},
        {**dead, **whole, "start": at(1), "end": at(2), "per_s": 3 / 60},
    ]
    assert found.topics == [
        {**named, **whole, "first_id": 3, "last_id": 3, "oldest": at(1), "newest": at(1)},
        {
            **live, **gap, "records": 3, "bytes": 7, "largest": 4, "median": 2, "keys": 2, "first_id": 5, "last_id": 9,
            "oldest": at(0, 10), "newest": at(7),
        },
        {**dead, **whole, "first_id": 0, "last_id": 2, "oldest": at(1), "newest": at(1)},
    ]  # fmt: skip
    bad = {"topic": "t.dlq", "reason": "bad"}
    assert found.reasons == [
        {**bad, "error_type": "KeyError", "count": 2, "attempts_mean": 3.5, "attempts_max": 5},
        {**bad, "error_type": None, "count": 1, "attempts_mean": 1.0, "attempts_max": 1},
    ]


def digest(payload: bytes) -> str:
    return hashlib.blake2b(payload, digest_size=8).hexdigest()


@pytest.mark.spark_slow
def test_verify_finds_what_was_planted(
    spark: SparkSession, url: str, client: sync.Client, tmp_path: Path
) -> None:
    publish(client, "ledger", 0, 1000)
    lines: list[dict[str, Any]] = []
    for n in range(1000):
        said = {"topic": "ledger", "key": f"k{n}" if n % 2 else None, "digest": digest(b"%d" % n), "id": n}
        lines.append({"op": "pub", "result": "ok", **said})
        lines.append({"op": "deliver", "result": "ok", "consumer": "c", **said})
    lines.append({"op": "pub", "result": "unknown", "topic": "ledger", "key": "never", "digest": "00", "id": None})
    lines[0]["result"], lines[0]["id"] = "unknown", None  # no key, and no answer: known by its payload
    lines.append({"op": "pub", "result": "err", "topic": "nowhere", "key": "no", "digest": "00", "id": None})
    lines[2 * 11]["digest"] = digest(b"other")  # pub 11: changed, and what is in the log was not published
    del lines[2 * 13]  # pub 13 was never written down
    lines.append({"op": "pub", "result": "ok", "topic": "ledger", "key": "gone", "digest": "11", "id": 5000})
    lines.append({"op": "deliver", "consumer": "c", "topic": "ledger", "key": "gone", "digest": "11", "id": 5001})
    lines.append({"op": "deliver", "consumer": "c", "topic": "ledger", "key": "k15", "digest": "11", "id": 15})
    with sync.connect(url) as other:
        other.config("ledger", {"dedupe_keys": 1})
        for _ in range(2):
            other.pub("ledger", b"17", key="k17")
            other.pub("ledger", b"19", key="k19")
    ledger = tmp_path / "history.jsonl"
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    events = verify.ledger(spark, [str(ledger)])
    table, first_ids = verify.log(spark, {"url": url}, verify.topics_of(events))
    found = sorted((row.kind, row.id) for row in verify.findings(events.cache(), table.cache(), first_ids).collect())
    assert found == [
        ("changed", 11), ("changed", 15), ("duplicated", 17), ("duplicated", 19), ("lost", 5000), ("unexpected", 13),
        ("unexpected", 5001),
    ], "those that were planted, and none of what an unknown outcome, a missing key or a missing topic explains"  # fmt: skip


@pytest.mark.spark_slow
def test_verify_refuses_what_it_could_not_check(spark: SparkSession, tmp_path: Path) -> None:
    """Spark by itself skips malformed lines, or misinterprets them."""
    bad = {tmp_path / f"bad {n}.jsonl": said for n, (said, _) in enumerate(MALFORMED)}
    good = {tmp_path / f"good-{n}.jsonl": said for n, said in enumerate(WELL_FORMED)}
    for ledger, said in {**bad, **good}.items():
        ledger.write_bytes(b"%b\n%b\n" % (line(id=0), said))
    events = verify.ledger(spark, [str(tmp_path / "bad*")])
    suspects = {row.suspect for row in events.where("suspect IS NOT NULL").select("suspect").distinct().collect()}
    assert suspects == {ledger.as_uri().replace("file://", "file:") for ledger in bad}
    with pytest.raises(DamagedData, match=re.escape(f"{tmp_path / 'bad 0.jsonl'}:2: Expecting value")):
        verify.refuse_malformed(events)
    torn = tmp_path / "good-torn.jsonl"
    torn.write_bytes(b"%b\n%b" % (line(id=0), line(id=1)[:-1]))
    events = verify.ledger(spark, [str(tmp_path / "good*")])
    assert verify.refuse_malformed(events) == [f"{torn}:2"]
    assert events.where("op IS NULL").count() == 1, "a line that broke off is no event"
    assert events.where("op = 'pub' AND result = 'ok' AND id = 4").count() == 5


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Callable[..., Result]:
    """Return ``toymq-pipeline``, run in the tests' Spark session."""

    class Borrowed:
        """The tests' session, which a command must not end."""

        def __getattr__(self, name: str) -> Any:
            return getattr(spark, name)

        def stop(self) -> None:
            pass

    monkeypatch.setattr("toymq_spark.session.build_session", lambda app, master, settings: Borrowed())
    return lambda *words: CliRunner().invoke(cli.main, [*words])


@pytest.fixture
def archived(command: Callable[..., Result], url: str, client: sync.Client, tmp_path: Path) -> str:
    """Archive ten records with the command. Returns: where they are."""
    with suppress(NoSuchTopic):
        client.delete("cli")  # of another test
    publish(client, "cli", 0, 10)
    to = str(tmp_path / "a")
    done = command("archive", "--url", url, "--subscribe", "cli", "--to", to, "--once", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["rows_total"] == 10
    return to


def test_the_command_archives_and_replays(command: Callable[..., Result], archived: str, url: str, tmp_path: Path) -> None:
    done = command("replay", "--url", url, "--archive", archived, "--to", "cli-copy", "--state", str(tmp_path / "s"))
    assert (done.exit_code, done.stdout) == (0, "replayed 10 rows to cli-copy\n")


@pytest.mark.spark_slow
def test_the_command_compacts_reports_and_verifies(
    command: Callable[..., Result], archived: str, url: str, console: Path, tmp_path: Path
) -> None:
    to = archived
    done = command("compact", to)
    assert (done.exit_code, done.stdout) == (0, "merged 0 files into 0 (0 rows), removed 0 old ones\n")
    done = command("report", "--archive", to, "--window", "1 day")
    assert (done.exit_code, [line.split()[:1] for line in done.stdout.splitlines()]) == (
        0, [["topic"], ["cli"], [], ["topic"], ["cli"]],
    )  # fmt: skip
    assert done.stdout.splitlines()[3].endswith("archived after, s")
    ledger = tmp_path / "ledger.jsonl"
    said = {"op": "pub", "result": "ok", "topic": "cli"}
    lines = [{**said, "key": f"k{n}" if n % 2 else None, "digest": digest(b"%d" % n), "id": n} for n in range(10)]
    for count, exit_code, unexpected in ((10, 0, []), (7, 1, [7, 8, 9])):
        ledger.write_text("".join(json.dumps(line) + "\n" for line in lines[:count]))
        done = command("verify", "--url", url, str(ledger), "--json")
        assert done.exit_code == exit_code, done.output
        found = json.loads(done.stdout)
        assert [row["id"] for row in found["rows"]] == unexpected, "records that are in no ledger"
        assert found["findings"] == found["unexpected"] == len(unexpected)
        assert found["torn"] == []
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines) + "not json\n")
    done = command("verify", "--url", url, str(ledger))
    assert (done.exit_code, done.output) == (1, f"toymq-pipeline: {ledger}:11: Expecting value at column 1\n")
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"op": "pub", "res')
    done = command("verify", "--url", url, str(ledger))
    assert (done.exit_code, done.stdout) == (0, "lost 0  unexpected 0  changed 0  duplicated 0\n")
    assert done.stderr == f"{ledger}:11: incomplete line ignored: its writer was killed\n"
    done = command("archive", "--url", url, "--subscribe", "cli", "--to", str(tmp_path / "b"), "--option", "colour=red")
    assert done.exit_code == 2
    assert "unknown option colour" in done.stderr
    pages = console.stat().st_size
    beyond = ("--to", str(tmp_path / "c"), "--once", "--option", 'startingOffsets={"cli": {"0": 99}}')
    done = command("archive", "--url", url, "--subscribe", "cli", *beyond)
    assert (done.exit_code, done.stderr) == (
        2, "toymq-pipeline: option startingOffsets: topic cli ends at 10, before 99 (see `toymq-pipeline archive --help`)\n"
    )
    assert b"ERROR" not in console.read_bytes()[pages:], "Spark's own pages stand beside it"
    for words, named in (
        (("replay", "--to", "t", "--state", "s", "--archive", to, "--subscribe", "t"), "--archive excludes --subscribe"),
        (("report", "--archive", to, "--option", "startingOffsets=earliest"), "--archive excludes --option"),
        (("report", "--data-dir", to, "--url", url, "--subscribe", "t"), "--data-dir excludes --url"),
        (("archive", "--to", "b", "--once", "--every", "1s"), "--once excludes --every"),
        (("watch", "--once", "--stuck-after", "1s"), "--once excludes --stuck-after"),
        (("archive", "--to", "b", "--every", "soon"), "invalid duration 'soon'"),
        (("archive", "--to", "b", "--option", "x"), "write NAME=VALUE"),
    ):
        done = command(*words)
        assert (done.exit_code, named in done.stderr) == (2, True), done.stderr


@pytest.mark.spark_slow
def test_watch_tells_of_gaps_and_of_a_consumer_that_is_stuck(
    spark: SparkSession, url: str, broker: BrokerProcess, client: sync.Client, tmp_path: Path
) -> None:
    publish(client, "watched", 0, 100)
    topic = tmp_path / "d" / "topics" / "watched"
    shutil.copytree(broker.data_dir / "topics" / "watched", topic, ignore=shutil.ignore_patterns("*.tmp"))
    (segment,) = topic.glob("*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(b"k51") + 1] ^= 1
    segment.write_bytes(data)
    found: list[tuple[str, str | None, int | None, int | None]] = []

    def tell(batch: DataFrame, number: int) -> None:
        found.extend((row.kind, row.consumer, row.first_id, row.last_id) for row in batch.collect())

    def start(once: bool, **source: str) -> StreamingQuery:
        options = {"subscribe": "watched", "startingOffsets": "earliest", **source}
        findings = watch.findings(spark, options, stuck_after_ms=1, once=once)
        writer = findings.writeStream.option("checkpointLocation", str(tmp_path / f"once-{once}")).foreachBatch(tell)
        return (writer.trigger(availableNow=True) if once else writer).start()

    start(True, path=str(tmp_path / "d")).awaitTermination(WAIT_S)
    assert found == [("gap", None, 51, 51)]
    damaged = spark.read.format("toymq").options(path=str(tmp_path / "d"), subscribe="watched", **report.SET).load()
    (row,) = report.report(damaged, "1 day").topics
    assert (row["records"], row["gaps"], row["gap_ids"]) == (99, 1, 1), "and a report does not stop at it"
    with client.sub("watched", "slow") as messages:
        messages.next(WAIT_S)
        query = start(False, url=url)
        try:
            for _ in range(WAIT_S):
                if query.awaitTermination(1) or len(found) == 2:
                    break
        finally:
            query.stop()
    assert found[1:] == [("stuck", "slow", None, None)], "and no gap, where there is none"
