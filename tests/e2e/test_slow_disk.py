"""A real disk that becomes slow in the middle: what a commit on the event loop may cost (ADR 0093)."""

import re
import urllib.request
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess, Wire
from tests.support.fuse_disk import FuseDisk
from tests.support.requirements import require

pytestmark = require("fuse")

SLOW_S = 0.3
BUCKET = re.compile(r'^toymq_loop_held_seconds_bucket\{le="([^"]+)"\} (\d+)', re.MULTILINE)
QUICK_PUBLISHES_MAX = 5_000


def holds(url: str, longer_than_s: float = 0.0) -> int:
    """Return how often a commit held the loop for longer than ``longer_than_s``, a bucket bound of the histogram."""
    with urllib.request.urlopen(url, timeout=60) as answer:
        buckets = {float(bound): int(number) for bound, number in BUCKET.findall(answer.read().decode())}
    return buckets[float("inf")] - (buckets[longer_than_s] if longer_than_s else 0)


def publish(wire: Wire) -> None:
    wire.send(b"PUB t - 5\nhello\n")
    assert wire.line().startswith(b"OK")


def test_a_disk_that_becomes_slow_holds_the_loop_once(tmp_path: Path) -> None:
    path = tmp_path / "disk"
    path.mkdir()
    with (
        FuseDisk(path, 1) as disk,
        BrokerProcess(path / "d", "--metrics", "127.0.0.1:0") as broker,
        broker.connect() as wire,
    ):
        metrics = broker.addresses[-1]
        for _ in range(QUICK_PUBLISHES_MAX):
            publish(wire)
            if holds(metrics):
                break
        else:
            pytest.skip("on this machine, now, the file system never takes less than a millisecond")
        disk.slow(SLOW_S)
        for _ in range(6):
            publish(wire)
        assert holds(metrics, longer_than_s=0.1) <= 1, "the first slow sync is the last one on the loop"
        disk.slow(0.0)
        publish(wire)
