"""While the broker runs, one of its segments is removed, or replaced with another topic's by ``cp`` or ``mv``: DESCRIBE counts
what ``toymq verify`` counts, before the restart and after it, and nothing of the other topic is served. ADR 0140."""

import json
import shutil
from pathlib import Path

from tests.support.broker_process import BrokerProcess, run
from toymq import sync
from toymq_py.clock import SystemClock
from toymq_py.storage.segment import segment_name

COUNT = 12
PER_SEGMENT = 4
NOTICED_WITHIN_S = 60
"""The broker looks every two seconds."""


def copied(source: Path, target: Path) -> None:
    """Copy a file over another one: the inode stays, its content goes."""
    shutil.copyfile(source, target)


def moved(source: Path, target: Path) -> None:
    shutil.copyfile(source, target.with_suffix(".copy"))
    target.with_suffix(".copy").rename(target)


def removed(_: Path, target: Path) -> None:
    target.unlink()


CHANGES = {change.__name__: change for change in (copied, moved, removed)}


def verified(data: Path) -> dict[str, int]:
    """Return the lost records by topic, of a directory that a broker may have open."""
    reports = [json.loads(line) for line in run("verify", "--json", str(data)).stdout.splitlines()]
    return {report["topic"]: report["lost"] for report in reports if report.get("topic") in CHANGES}


def described(client: sync.Client) -> dict[str, int]:
    return {topic: client.describe(topic)["lost"] for topic in CHANGES}


def delivered(client: sync.Client, topic: str) -> list[int]:
    """Return the ids of all that a new consumer gets."""
    found: list[int] = []
    with client.sub(topic, "c") as messages:
        while not found or found[-1] < COUNT - 1:
            message = messages.next(timeout=60)
            assert message.payload.startswith(b"%b %2d" % (topic.encode().ljust(7), message.id)), "nothing of another topic"
            found.append(message.id)
    return found


def test_describe_counts_what_verify_does_before_the_restart(tmp_path: Path) -> None:
    """Found: DESCRIBE reported no loss, and the overwritten bytes were served."""
    data = tmp_path / "d"
    all_lost = dict.fromkeys(CHANGES, PER_SEGMENT)
    with BrokerProcess(data, "--segment-bytes", "4400") as broker:
        with sync.connect(f"toymq://127.0.0.1:{broker.port}") as client:
            for n in range(COUNT):
                for topic in (*CHANGES, "payroll"):
                    client.pub(topic, f"{topic:7} {n:2}".encode() + bytes(1000))
            for topic, change in CHANGES.items():
                theirs, ours = (data / "topics" / each / segment_name(PER_SEGMENT) for each in ("payroll", topic))
                assert theirs.stat().st_size == ours.stat().st_size, "the segments are of one shape"
                change(theirs, ours)
            now = SystemClock().monotonic
            end = now() + NOTICED_WITHIN_S
            while described(client) != all_lost and now() < end:
                pass
            assert described(client) == verified(data) == all_lost
            assert {client.describe(topic)["state"] for topic in CHANGES} == {"degraded"}
        broker.restart()
        with sync.connect(f"toymq://127.0.0.1:{broker.port}") as client:
            assert described(client) == verified(data) == all_lost
            kept = [n for n in range(COUNT) if n not in range(PER_SEGMENT, 2 * PER_SEGMENT)]
            assert {topic: delivered(client, topic) for topic in CHANGES} == dict.fromkeys(CHANGES, kept)
