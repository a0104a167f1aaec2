"""``verify`` at a size for which a checker in one process would be slow. Minutes: make test-spark-slow."""

import hashlib
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess, environment
from tests.support.requirements import require
from toymq import sync

pytestmark = [require("java"), pytest.mark.spark_slow]

ROWS = 2_000_000
LONG_S = 1200
CHAOS = [sys.executable, "-c", "from toymq_chaos.cli import main; main()"]
COMMAND = [sys.executable, "-c", "from toymq_spark.cli import main; main()"]


def line(op: str, n: int, msg_id: int, payload: bytes) -> str:
    digest = hashlib.blake2b(payload, digest_size=8).hexdigest()
    return f'{{"op": "{op}", "result": "ok", "topic": "big", "key": "k{n}", "digest": "{digest}", "id": {msg_id}}}\n'


def test_seven_faults_among_two_million(tmp_path: Path) -> None:
    """Producers' ledger and consumers' ledger of 2,000,000 lines each, and a log of as many records."""
    lost, forgotten, changed, nowhere, otherwise, swapped = random.Random(7).sample(range(ROWS - 10), 6)
    with BrokerProcess(tmp_path / "d") as broker:
        url = f"toymq://127.0.0.1:{broker.port}"
        with sync.connect(url, timeout_s=60) as client:
            for _ in client.pub_many("big", ((f"k{n}", b"%d" % n) for n in range(ROWS)), window=8192):
                pass
        with (tmp_path / "producers.jsonl").open("w") as producers, (tmp_path / "consumers.jsonl").open("w") as consumers:
            for n in range(ROWS):
                if n == lost:  # an acknowledged publish that the log does not have; and its record, which was not published
                    producers.write(line("pub", ROWS + 1, ROWS + 1, b"lost"))
                elif n == changed:
                    producers.write(line("pub", n, n, b"before"))
                elif n != forgotten:
                    producers.write(line("pub", n, n, b"%d" % n))
                if n == otherwise:
                    consumers.write(line("deliver", n, n, b"flipped"))
                elif n == nowhere:
                    consumers.write(line("deliver", n, ROWS + 2, b"%d" % n))
                elif n == swapped:
                    consumers.write(line("deliver", n + 1, n, b"%d" % n))
                else:
                    consumers.write(line("deliver", n, n, b"%d" % n))
        ledgers = [str(tmp_path / "producers.jsonl"), str(tmp_path / "consumers.jsonl")]
        command = [*COMMAND, "--master", "local[2]", "verify", "--url", url, "--json", *ledgers]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=LONG_S, check=False)
    assert done.returncode == 1, done.stderr
    said = json.loads(done.stdout)
    found = sorted((row["kind"], row["id"]) for row in said["rows"])
    assert found == sorted([
        ("lost", ROWS + 1), ("unexpected", lost), ("unexpected", forgotten), ("changed", changed),
        ("unexpected", ROWS + 2), ("changed", otherwise), ("changed", swapped),
    ])  # fmt: skip
    assert said["findings"] == 7


def test_a_run_of_chaos_is_verified(tmp_path: Path) -> None:
    """The chaos harness writes the ledgers that ``verify`` reads; a delivery without a publish, added by hand, is found."""
    out = tmp_path / "out"
    chaos = [*CHAOS, "run", "--duration", "10s", "--seed", "5", "--out", str(out), "--spark-verify"]
    done = subprocess.run(chaos, env=environment(), capture_output=True, text=True, timeout=LONG_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "lost 0  unexpected 0  changed 0  duplicated 0"
    history = out / "history.jsonl"
    lines = map(json.loads, history.read_text().splitlines())
    published = next(said for said in lines if said["op"] == "pub" and said["result"] == "ok")
    with history.open("a") as more:
        more.write(json.dumps({**published, "op": "deliver", "id": 10**9}) + "\n")
    verify = [*COMMAND, "--master", "local[2]", "verify", str(history), "--data-dir", str(out / "data" / "d")]
    done = subprocess.run(verify, env=environment(), capture_output=True, text=True, timeout=LONG_S, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == "lost 0  unexpected 1  changed 0  duplicated 0"
