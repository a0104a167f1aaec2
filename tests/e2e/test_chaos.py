"""The chaos harness itself, in its short form: a real broker under faults keeps its promises, and the checker finds a falsified
history."""

import json
import subprocess
import sys
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from toymq_chaos.cli import main
from toymq_chaos.experiment import TOPICS, token_of
from toymq_chaos.history import CONFIRM

CHAOS = Path(sys.executable).with_name("toymq-chaos")
DURATION = "6s"


def chaos(*arguments: str | Path) -> Result:
    """Run the harness in this process; its broker is a process of its own."""
    return CliRunner().invoke(main, [*map(str, arguments)])


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of one run, which every test here looks at."""
    path = tmp_path_factory.mktemp("chaos") / "out"
    words = [CHAOS, "run", "--seed", "1", "--duration", DURATION, "--out", path]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("every promise was kept\n")
    return path


def events(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def verdict(path: Path) -> tuple[int, dict[str, object], str]:
    done = chaos("check", "--json", path)
    return done.exit_code, json.loads(done.stdout), done.stderr


def spoilt(out: Path, path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_broker_under_faults_keeps_its_promises(out: Path) -> None:
    rows = events(out / "history.jsonl")
    ops = Counter(row["op"] for row in rows)
    assert ops["kill"] >= 2
    answered = sum(row["op"] == "pub" and row["result"] in ("ok", "dup") for row in rows)
    assert answered >= 120, "20 for each of its seconds: a run lasts until they are answered, however busy the machine is"
    assert ops["deliver"] > ops["pub"], "every topic has two consumers"
    code, found, _ = verdict(out / "history.jsonl")
    assert code == 0
    assert (found["lost"], found["unexpected"], found["violations"]) == (0, 0, [])
    confirms = Counter(row["result"] for row in rows if row.get("note") == CONFIRM)
    assert confirms["ok"] > 0, "AMQP was spoken, too"
    outcomes: dict[object, set[object]] = {}
    for row in rows:
        if row["op"] == "pub" and row.get("note") != CONFIRM:  # the AMQP publisher repeats nothing
            outcomes.setdefault((row["topic"], row["key"]), set()).add(row.get("note") or row["result"])
    open_ = {key: told for key, told in outcomes.items() if not told & {"ok", "dup"}}
    assert all("QUEUE_FULL" in told for told in open_.values()), "publishers repeat all else until they are answered"
    assert found["acknowledged"] >= len(outcomes) - len(open_)  # type: ignore[operator]
    assert {"pull", "config", "redrive"} <= set(ops), "a work queue is part of it"
    assert "stalled" not in ops
    own = {
        kind: {str(row["process"]).partition(".")[0] for row in rows if (row["op"], row["result"]) == kind}
        for kind in (("pub", "ok"), ("deliver", "ok"), ("ack", "unknown"), ("ack", "ok"))
    }
    subscriptions = {"a-4", "a-32", "a-1024", "b-16"}
    assert own["pub", "ok"] >= {"a-pub", "b-pub"}, "the product's own clients publish"
    assert own["deliver", "ok"] >= subscriptions
    assert own["ack", "unknown"] >= subscriptions, "most acks wait for no answer"
    assert own["ack", "ok"] & subscriptions, "some wait for the disk"
    last_kill = max(index for index, row in enumerate(rows) if row["op"] == "kill")
    behind = {str(row["process"]).partition(".")[0] for row in rows[last_kill:] if row["op"] == "deliver"}
    assert behind >= subscriptions, "they come back by themselves"
    assert any(str(row["process"]).startswith("a-pub.") and "seq" in row for row in rows), "without a key, too"
    assert sum(found["duplicated"].values()) > 0  # type: ignore[attr-defined]
    assert (out / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_no_output_has_the_token(out: Path) -> None:
    """The run has an odd seed, so every client sent a token: no file that the run leaves behind contains it, the data directory
    included."""
    secret = token_of(1).encode()
    assert sha256(secret).hexdigest() in (out / "auth.toml").read_text(), "the broker asked for it"
    files = [path for path in out.rglob("*") if path.is_file()]
    assert {"broker.log", "history.jsonl", "timeline.png"} <= {path.name for path in files}
    for path in files:
        assert secret not in path.read_bytes(), path


def test_one_delivery_that_is_missing_is_found(out: Path, tmp_path: Path) -> None:
    rows = events(out / "history.jsonl")
    came = [row for row in rows if row["op"] == "deliver" and row["topic"] in TOPICS]  # others have limits, and are purged
    times = Counter((row["topic"], row["consumer"], row["id"]) for row in came)
    once = next(message for message, count in times.items() if count == 1)
    rows = [row for row in rows if row["op"] != "deliver" or (row["topic"], row["consumer"], row["id"]) != once]
    code, found, _ = verdict(spoilt(out, tmp_path / "h.jsonl", rows))
    assert (code, found["lost"]) == (1, 1)
    done = chaos("check", tmp_path / "h.jsonl")
    assert f'"id": {once[2]}' in done.stderr, "the smallest evidence is shown"
    assert f"an acknowledged message never came to {once[1]}" in done.stderr


def test_one_digest_that_is_another_is_found(out: Path, tmp_path: Path) -> None:
    rows = events(out / "history.jsonl")
    next(row for row in rows if row["op"] == "deliver")["digest"] = "0" * 16
    code, found, _ = verdict(spoilt(out, tmp_path / "h.jsonl", rows))
    assert code == 1
    assert [violation["promise"] for violation in found["violations"]] == ["a message was changed"]  # type: ignore[attr-defined]


def test_what_cannot_be_tried_is_one_line(out: Path, tmp_path: Path) -> None:
    again = chaos("run", "--duration", "1s", "--out", out)
    assert (again.exit_code, again.stdout) == (2, "")
    assert again.stderr.splitlines()[-1].endswith("the data directory of an earlier run exists: choose another --out")
    (tmp_path / "h.jsonl").write_text("{")
    torn = chaos("check", tmp_path / "h.jsonl")
    assert torn.exit_code == 2
    assert torn.stderr.splitlines()[-1].startswith(f"toymq-chaos: {tmp_path / 'h.jsonl'}:1: ")
    (tmp_path / "h.jsonl").write_bytes((out / "history.jsonl").read_bytes()[:100_000].rpartition(b"\n")[0])
    cut = chaos("check", tmp_path / "h.jsonl")
    assert cut.exit_code == 2
    assert f"{tmp_path / 'h.jsonl'}: it has no \"drained\"" in cut.stderr.splitlines()[-1]
    assert chaos("check", "--unfinished", tmp_path / "h.jsonl").exit_code == 0
    assert "invalid duration" in chaos("run", "--duration", "soon").stderr
