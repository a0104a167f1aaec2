"""Other brokers: their wires as they were recorded, which are skipped, what the tables say. None has to be installed."""

import struct
from pathlib import Path

import pytest
from click.testing import CliRunner

from toymq_bench.cli import main
from toymq_bench.errors import BenchError, WrongReply
from toymq_bench.frames import Consuming
from toymq_bench.peers import rabbitmq, runner, strace
from toymq_bench.peers.beanstalkd import BeanstalkdConsumer
from toymq_bench.peers.nats import NatsConsumer
from toymq_bench.peers.peer import CountingProducer
from toymq_bench.peers.redis import RedisConsumer, command
from toymq_bench.result import Result, Session

STAMPS = [b"%012x" % number for number in (7, 7, 9)]
BODIES = [stamp + b"abcdefgh" for stamp in STAMPS]


def test_those_that_are_not_installed_are_skipped_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH is empty: only the toymq beside the interpreter is there."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(rabbitmq.RabbitMQ, "program", str(tmp_path / "rabbitmq-server"))
    kept = tmp_path / "peers.json"
    short = ["--runs", "1", "--seconds", "300ms", "--warmup", "10ms", "--shape", "16x16", "--shape", "end to end"]
    picture = tmp_path / "peers.svg"
    files = ["--json", str(kept), "--plot", str(picture)]
    done = CliRunner().invoke(main, ["peers", *short, "--data-dir", str(tmp_path), *files])
    assert done.exit_code == 0, done.output
    for name in ("Redis Streams (redis-server)", "NATS JetStream (nats-server)", "beanstalkd (beanstalkd)", "RabbitMQ ("):
        assert f"skipped, not installed: {name}" in done.stdout
    assert "toymq: fdatasync before each reply (group commit)" in done.stdout
    assert [result.scenario for result in Session.load(kept).results] == ["16 x 16", "end to end"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["peers.json", "peers.svg"]
    assert "<!-- end to end -->" in picture.read_text(), "matplotlib writes the texts of a picture beside their outlines"


def test_an_unknown_shape_and_a_missing_strace_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BenchError, match="unknown shape '2x2': write one of 1x1"):
        runner.chosen(["2x2"])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchError, match="strace"), strace.SyncCounter([1], tmp_path):
        pass


def test_a_peer_that_syncs_nothing_says_so_in_the_table() -> None:
    results = [
        Result("1 x 1", {"peer": name}, durability, [{"publishes_per_s": rate, "disk_limit_per_s": 3.0}])
        for name, durability, rate in (("a", "fsync before each reply", 1.0), ("b", "WEAK: no fsync", 2.0))
    ]
    shown = list(runner.lines(results, ["c (cd)"]))
    assert shown[:4] == ["messages/s    1 x 1", "a                 1", "b                 2", "(disk limit)      3"]
    assert shown[-3:] == ["a: fsync before each reply", "b: WEAK: no fsync", "skipped, not installed: c (cd)"]


def arriving(consumer: Consuming, data: bytes, step: int) -> tuple[list[bytes], bytes]:
    """What a consumer made of it in pieces: stamps and answers."""
    stamps, answer = [], b""
    for start in range(0, len(data), step):
        chunk = consumer.deliveries(data[start : start + step])
        stamps += chunk.stamps
        answer += chunk.answer
    return stamps, answer


@pytest.mark.parametrize("step", [1, 13, 1000])
def test_redis_entries_are_acked_each_and_the_next_read_follows(step: int) -> None:
    entry = b"*2\r\n$15\r\n%d-0\r\n*2\r\n$1\r\nd\r\n$20\r\n%b\r\n"
    entries = b"".join(entry % (1526919030470 + number, body) for number, body in enumerate(BODIES))
    consumer = RedisConsumer(b"s", 10, 20)
    stamps, answer = arriving(consumer, b"*1\r\n*2\r\n$1\r\ns\r\n*3\r\n" + entries, step)
    acks = [command(b"XACK", b"s", b"g", b"%d-0" % (1526919030470 + number)) for number in range(3)]
    assert (stamps, answer) == (STAMPS, b"".join(acks) + consumer.read)
    assert arriving(consumer, b":1\r\n:1\r\n:1\r\n*-1\r\n", 1000) == ([], consumer.read)
    with pytest.raises(WrongReply, match="NOGROUP"):
        consumer.deliveries(b"-NOGROUP no such group\r\n")


@pytest.mark.parametrize("step", [1, 13, 1000])
def test_nats_messages_are_acked_each_and_pings_answered(step: int) -> None:
    data = b"".join(b"MSG deliver.c 2 $JS.ACK.s.c.1.%d 20\r\n%b\r\n" % (number, body) for number, body in enumerate(BODIES))
    stamps, answer = arriving(NatsConsumer(20), data + b"PING\r\n", step)
    acks = b"".join(b"PUB $JS.ACK.s.c.1.%d 4\r\n+ACK\r\n" % number for number in range(3))
    assert (stamps, answer) == (STAMPS, acks + b"PONG\r\n")
    with pytest.raises(WrongReply, match="Slow Consumer"):
        NatsConsumer(20).deliveries(b"-ERR 'Slow Consumer'\r\n")


@pytest.mark.parametrize("step", [1, 13, 1000])
def test_beanstalkd_jobs_are_deleted_before_the_next_reserve(step: int) -> None:
    consumer = BeanstalkdConsumer(20)
    assert arriving(consumer, b"RESERVED 5 20\r\n" + BODIES[0] + b"\r\n", step) == (STAMPS[:1], b"delete 5\r\nreserve\r\n")
    assert arriving(consumer, b"DELETED\r\nRESERVED 6 20\r\n" + BODIES[2] + b"\r\n", step)[0] == STAMPS[2:]
    with pytest.raises(WrongReply, match="NOT_FOUND"):
        consumer.deliveries(b"NOT_FOUND\r\n")


def confirm(tag: int, multiple: bool = False) -> bytes:
    return rabbitmq.method(1, 60, 80, struct.pack(">QB", tag, multiple))


@pytest.mark.parametrize("step", [1, 13, 1000])
def test_confirms_of_one_and_of_many_count_each_message_once(step: int) -> None:
    producer = rabbitmq.RabbitProducer(b"q", 4, 20)
    data = confirm(2) + confirm(4) + confirm(3, multiple=True) + confirm(5) + confirm(9, multiple=True)
    assert sum(producer.replies(data[start : start + step]) for start in range(0, len(data), step)) == 9
    with pytest.raises(WrongReply):
        producer.replies(rabbitmq.method(1, 60, 120, struct.pack(">QB", 10, 0)))  # basic.nack


@pytest.mark.parametrize("step", [1, 13, 1000])
def test_rabbitmq_deliveries_are_acked_each(step: int) -> None:
    data = b""
    for tag, body in enumerate(BODIES, 1):
        data += rabbitmq.method(1, 60, 60, b"\x01c" + struct.pack(">QB", tag, 0) + b"\0\x01q")
        data += rabbitmq.frame(2, 1, struct.pack(">HHQHB", 60, 0, 20, 0x1000, 2)) + rabbitmq.frame(3, 1, body)
    assert arriving(rabbitmq.RabbitConsumer(20), data, step) == (STAMPS, b"".join(confirm(tag) for tag in (1, 2, 3)))
    with pytest.raises(WrongReply, match="NOT_FOUND"):
        rabbitmq.RabbitConsumer(20).deliveries(rabbitmq.method(1, 20, 40, b"\x01\x94\x09NOT_FOUND"))


@pytest.mark.parametrize("step", [1, 5, 1000])
@pytest.mark.parametrize(
    ("token", "wrong", "replies", "error"),
    [
        (b"$", rb"-[A-Z]", b"$15\r\n1526919030470-0\r\n" * 3, b"-OOM too much\r\n"),
        (b'"seq":', rb'"error"|-ERR', b'MSG inbox.0 1 30\r\n{"stream":"s", "seq":12}\r\n' * 3, b'MSG i 1 9\r\n{"error":1}\r\n'),
        (b"INSERTED", rb"BURIED|[A-Z]_[A-Z]|DRAINING", b"INSERTED 12\r\n" * 3, b"OUT_OF_MEMORY\r\n"),
    ],
)
def test_each_reply_counts_once_however_it_arrives(step: int, token: bytes, wrong: bytes, replies: bytes, error: bytes) -> None:
    producer = CountingProducer(b"frame", 4, token, wrong)
    assert sum(producer.replies(replies[start : start + step]) for start in range(0, len(replies), step)) == 3
    with pytest.raises(WrongReply):
        producer.replies(error)


def test_the_summary_of_strace_is_read() -> None:
    summary = """% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 98.10    0.512345         512      1000           fdatasync
  1.90    0.009876         123        80         2 fsync
------ ----------- ----------- --------- --------- ----------------
100.00    0.522221         483      1080         2 total
"""
    assert strace.count(summary) == 1080
    assert strace.count("") == 0
