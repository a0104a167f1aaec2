"""How long a broker takes to start with a terabyte in its bucket: ``python -m tests.e2e.terabyte``.

A stand-in: 16,000 segments of 64 MiB, of which the data directory has the rows and the bucket sparse objects. Prints the time
until the broker is ready, its CPU, and the longest PING while the bucket is listed behind it. ``--topics 1 100`` divides them.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.broker_process import BrokerProcess
from toymq import sync
from toymq_py.config.topic_settings import TopicSettings
from toymq_py.storage import evicted, offsets, topic_settings
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.segment import Segment, segment_name
from toymq_py.tier.keys import Place, seal_key, segment_key
from toymq_py.tier.objects import Seal

SEGMENTS, SEGMENT_BYTES, RECORDS = 16_000, 64 << 20, 60_000
TICKS = os.sysconf("SC_CLK_TCK")


def rows(path: str, count: int) -> Iterator[tuple[Segment, str]]:
    for row in range(count):
        base_id = row * RECORDS
        segment = Segment(f"{path}/{segment_name(base_id)}", base_id, next_id=base_id + RECORDS, end=SEGMENT_BYTES, sealed=True)
        segment.newest_ts_ns = (row + 1) * 1_000_000_000
        segment.add_index_entry(base_id, 0, 0, row * 1_000_000_000)
        yield segment, "0" * 64


def make(data_dir: Path, bucket: Path | None, topics: int) -> None:
    """Make the segments, divided over so many topics; each topic has an empty newest file behind them."""
    fs, count = RealFileSystem(), SEGMENTS // topics
    for number in range(topics):
        name, incarnation = f"t{number}", f"{number:016x}"
        topic = data_dir / "topics" / name
        topic.mkdir(parents=True)
        (topic / segment_name(count * RECORDS)).touch()
        evicted.store(fs, str(topic), evicted.encode(name, rows(str(topic), count), {}))
        topic_settings.store(fs, str(topic), TopicSettings(), incarnation)
        offsets.write(fs, str(topic), offsets.encode(offsets.OffsetsState(next_id=count * RECORDS), name))
        if bucket is None:
            continue
        place = Place(name, incarnation)
        (bucket / name / incarnation).mkdir(parents=True)
        for base_id in range(0, count * RECORDS, RECORDS):
            with (bucket / segment_key(place, base_id)).open("wb") as file:
                file.truncate(SEGMENT_BYTES)
            (bucket / seal_key(place, base_id)).write_bytes(Seal(base_id + RECORDS, SEGMENT_BYTES, "0" * 64).encode())


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def started(broker: BrokerProcess) -> tuple[float, float]:
    """Return the seconds until the broker is ready, and those of its CPU."""
    began = time.perf_counter()
    broker.start()
    return time.perf_counter() - began, cpu_s(broker.pid)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, nargs="+", default=[1])
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    say(f"load {os.getloadavg()[0]:.1f}")
    for topics in options.topics:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "bucket").mkdir()
            (folder / "empty").mkdir()
            make(folder / "d", folder / "bucket", topics)
            for what, data_dir, tier in (
                ("an empty directory", "empty", ()), ("a terabyte", "d", ("--tier", f"file://{folder}/bucket")),
            ):  # fmt: skip
                for _ in range(options.runs):
                    broker = BrokerProcess(folder / data_dir, *tier, executed=True)
                    wall_s, used_s = started(broker)
                    worst_s = longest_ping_s(broker.port)
                    ping = f"longest PING {worst_s * 1000:.0f} ms"
                    say(f"{what}, topics: {topics}: ready after {wall_s:.2f} s, {used_s:.2f} s of CPU; {ping}")
                    broker.kill()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def longest_ping_s(port: int, seconds: float = 8) -> float:
    worst_s, end = 0.0, time.perf_counter() + seconds
    with sync.connect(f"toymq://127.0.0.1:{port}") as mq:
        while (began := time.perf_counter()) < end:
            mq.ping()
            worst_s = max(worst_s, time.perf_counter() - began)
    return worst_s


if __name__ == "__main__":
    main()
