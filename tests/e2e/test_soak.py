"""The soak itself, in its short form: a broker under load and churn returns to its first use of resources, and a leak is
detected."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.requirements import require
from toymq_chaos import vitals
from toymq_chaos.cli import main
from toymq_chaos.leaks import complaints
from toymq_chaos.vitals import Vitals

CHAOS = Path(sys.executable).with_name("toymq-chaos")

pytestmark = require("proc")


def soak(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([CHAOS, "soak", *arguments], capture_output=True, text=True, check=False, timeout=240)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of one run, which every test here looks at."""
    path = tmp_path_factory.mktemp("soak") / "out"
    done = soak("--seed", "1", "--duration", "7s", "--out", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("everything returned to where it was\n")
    rows = [line.split()[0] for line in done.stdout.splitlines()[1:6]]
    assert rows == ["RSS", "descriptors", "tasks", "threads", "disk"]
    return path


@pytest.fixture(scope="module")
def samples(out: Path) -> list[Vitals]:
    return [vitals.parse(line, number) for number, line in enumerate((out / "soak.jsonl").read_text().splitlines(), 1)]


def test_a_broker_under_churn_returns_to_where_it_was(out: Path, samples: list[Vitals]) -> None:
    rests, work = ([sample for sample in samples if sample.at_rest is at_rest] for at_rest in (True, False))
    assert len(rests) >= 2
    assert complaints(samples) == []
    assert {(rest.connections, rest.topics) for rest in rests} == {(2, 3)}, "at rest there is only what stands"
    assert max(sample.connections for sample in work) > 10
    assert max(sample.topics for sample in work) > 3
    assert rests[-1].publish_total > rests[0].publish_total > 100
    assert all(sample.ping_p99_s is not None and sample.ping_p99_s > 0 for sample in rests)
    assert (out / "soak.png").read_bytes().startswith(b"\x89PNG")
    assert "ERROR" not in (out / "broker.log").read_text()


def test_the_samples_are_what_the_contract_says(out: Path) -> None:
    names = {"rss_bytes", "descriptors", "tasks", "threads", "disk_bytes", "ping_p50_s", "ping_p99_s"}
    for line in (out / "soak.jsonl").read_text().splitlines():
        assert names <= set(json.loads(line))


def test_what_cannot_be_tried_is_one_line(out: Path) -> None:
    def in_process(*words: str) -> Result:
        return CliRunner().invoke(main, ["soak", *words])

    again = in_process("--duration", "1s", "--out", str(out))
    assert (again.exit_code, again.stdout) == (2, "")
    assert again.stderr.splitlines()[-1].endswith("the data directory of an earlier run exists: choose another --out")
    assert "invalid duration" in in_process("--duration", "soon").stderr
