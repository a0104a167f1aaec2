"""The command ``toymq-bench``: errors in one line, result files that can be read again, small real runs."""

import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.broker_process import ROOT, BrokerProcess
from toymq import sync
from toymq_bench import commits, goals, profile
from toymq_bench.cli import main
from toymq_bench.errors import BenchError
from toymq_bench.result import Session
from toymq_bench.traffic import Traffic

SHORT = ["--seconds", "200ms", "--warmup", "50ms"]


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pub", "--seconds", "soon"], "soon"),
        (["pub", "--seconds", "0s"], "invalid duration '0s': write 1ms to ten years"),
        (["pub", "--seconds", "0.0009"], "invalid duration '0.0009': write 1ms to ten years"),
        (["pub", "--seconds", "nan"], "nan"),
        (["pub", "--producers", "0"], "--producers"),
        (["pub", "--connect", "127.0.0.1:1"], "--connect needs --pid, and --pid needs --connect"),
        (["pub", "--connect", "here", "--pid", "1"], "HOST:PORT"),
        (["pub", "--connect", "127.0.0.1:1", "--pid", "1", "--fsync", "never"], "--fsync"),
        (["pub", "--connect", "127.0.0.1:1", "--pid", "1", "--", "--visibility", "1s"], "SERVE OPTIONS"),
        (["e2e", "--no-keys", "--size", "11"], "--size 12"),
        (["pub", "--data-dir", "/nowhere"], "/nowhere"),
        (["pub", "--plot", "a.doc"], "its name has to end with .png or .svg"),
        (["goals", "--messages", "5010"], "--messages must exceed"),
        (["compare", "nowhere.json", "nowhere.json"], "nowhere.json"),
        (["depth", "--messages", "100", "--cycles", "90"], "--messages must exceed"),
    ],
)
def test_misuse_is_told_and_ends_with_2(arguments: list[str], said: str) -> None:
    done = bench(*arguments)
    assert (done.exit_code, said in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--connect", "127.0.0.1:1", "--pid", "999999999"], "process 999999999 does not exist"),
        (["--connect", "127.0.0.1:1", "--pid", "1"], "refused"),
        (["--runs", "1", "--seconds", "10ms", "--", "--no-such-option"], "the broker did not start"),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_1(arguments: list[str], said: str, tmp_path: Path) -> None:
    if "--connect" not in arguments:
        arguments = ["--data-dir", str(tmp_path), *arguments]
    done = bench("pub", *arguments)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("toymq-bench: ")]
    assert (done.exit_code, said in line) == (1, True), done.output
    assert list(tmp_path.iterdir()) == []


def test_publishing_shows_rate_latency_and_cost(attach: list[str], broker: BrokerProcess, tmp_path: Path) -> None:
    kept = tmp_path / "a.json"
    done = bench("pub", "--producers", "2", "--window", "8", "--topics", "2", *SHORT, *attach, "--json", str(kept))
    assert done.exit_code == 0, done.output
    metrics = ("publishes/s", "broker CPU us/msg", "publish p99.9 ms", "client cores")
    for shown in (*metrics, "fsync always", "Python", "unknown file system"):
        assert shown in done.output
    (result,) = Session.load(kept).results
    assert result.parameters == {"producers": 2, "window": 8, "topics": 2, "size": 256}
    assert result.runs[0]["publishes_per_s"] > 0
    with sync.connect(f"toymq://127.0.0.1:{broker.port}") as client:
        assert client.topics() == [], "it cleans up"


@pytest.mark.parametrize("options", [[], ["--no-keys", "--single-acks", "--producers", "2"], ["--rate", "500"]])
def test_what_is_published_is_delivered(options: list[str], attach: list[str]) -> None:
    done = bench("e2e", "--window", "64", *options, *SHORT, *attach)
    assert done.exit_code == 0, done.output
    assert "delivery p50 ms" in done.output


def test_a_broker_of_its_own_has_the_disk_limit_beside_it_and_is_removed(tmp_path: Path) -> None:
    done = bench("pub", "--runs", "1", *SHORT, "--fsync", "never", "--data-dir", str(tmp_path), "--", "--segment-bytes", "1MiB")
    assert done.exit_code == 0, done.output
    assert "fsync never" in done.output
    assert "of the disk limit" in done.output
    assert "disk limit/s" in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["fanout", "--consumers", "3", "--window", "64", *SHORT], "deliveries/s"),
        (["drain", "--messages", "300", "--consumers", "2"], "deliveries/s"),
        (["redelivery", "--messages", "300"], "redeliveries/s"),
        (["depth", "--messages", "60", "--cycles", "18"], "deep / shallow"),
        (["idle", "--sessions", "20"], "RSS kB per session"),
        (["lag", "--producers", "2", *SHORT], "PING p99 ms"),
        (["client", "--messages", "300"], "client CPU us/msg"),
        (["worker", "--messages", "300"], "worker CPU us/job"),
        (["worker", "--messages", "300", "--kind", "thread"], "worker CPU us/job"),
        (["client", "--messages", "300", "--kind", "blocking", "--no-keys"], "client CPU us/msg"),
    ],
)
def test_scenarios_of_a_running_broker(arguments: list[str], shown: str, attach: list[str], broker: BrokerProcess) -> None:
    done = bench(*arguments, *attach)
    assert done.exit_code == 0, done.output
    assert shown in done.output
    with sync.connect(f"toymq://127.0.0.1:{broker.port}") as client:
        assert client.topics() == [], "it cleans up"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [(["recovery"], "first delivery s"), (["memory"], "RSS MB per million"), (["verify"], "MB per CPU s")],
)
def test_scenarios_that_need_a_broker_of_their_own(arguments: list[str], shown: str, tmp_path: Path) -> None:
    done = bench(*arguments, "--messages", "300", "--runs", "1", "--data-dir", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert shown in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("batch", ["1", "20"])
def test_publishing_over_http(batch: str, tmp_path: Path) -> None:
    done = bench("http", "--connections", "3", "--batch", batch, *SHORT, "--runs", "1", "--data-dir", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert f"http connections=3 batch={batch} size=256; durability: fsync always" in done.output
    assert "publish p99 ms" in done.output


def test_a_profile_names_the_hottest_lines() -> None:
    raw = "main;loop;parse (a.py:1) 30\nmain;loop;encode (b.py:2) 10\nmain;other;parse (a.py:1) 10\n"
    found = list(profile.lines(raw, messages=1000, seconds=0.25))
    assert [line.split() for line in found[:3]] == [
        ["line", "us/message"],
        ["parse", "(a.py:1)", "100.00"],  # 40 of 400 samples a second are 0.1 s, of a thousand messages
        ["encode", "(b.py:2)", "25.00"],
    ]
    assert found[3] == "all Python: 125.00 us a message, 50% of the time"


def test_without_py_spy_a_profile_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(profile.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchError, match=r"\.\[profile\]"):
        profile.pyspy()


def test_goals_measure_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goals, "CYCLES", 9)
    monkeypatch.setattr(goals, "IDLE_SESSIONS", 20)
    kept, picture = tmp_path / "goals.json", tmp_path / "goals.png"
    short = ["--messages", "60", "--runs", "1", "--warmup", "10ms", "--data-dir", str(tmp_path)]
    done = bench("goals", *short, "--seconds", "100ms", "--json", str(kept), "--plot", str(picture))
    assert done.exit_code == 0, done.output
    shown = [line for line in done.stdout.splitlines() if line.rstrip("*").endswith(("goal", "floor", "MISSED"))]
    assert len(shown) == len(goals.GOALS)
    assert "with 60 messages; the goal speaks of 10,000,000" in done.stdout
    assert {result.scenario for result in Session.load(kept).results} == {goal.row for goal in goals.GOALS}
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_base_commit_is_held_against_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base commit is in a small repository. A comment and a version tell its broker from that of the checkout."""
    shutil.copytree(ROOT / "toymq_py", tmp_path / "toymq_py")  # with its bytecode, which the commit has not
    monkeypatch.chdir(tmp_path)
    commits.git("init", "--quiet")
    commits.git("add", "toymq_py", ":!*.pyc")
    commits.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "base")
    version = tmp_path / "toymq_py" / "__init__.py"
    version.write_text(version.read_text() + "\n")
    seen = []
    monkeypatch.setattr(commits, "LOADS", {"pub": Traffic(1, 8)})
    monkeypatch.setattr(commits, "measure", lambda broker, *_: seen.append(sources_of(broker.pid)) or {"broker_cpu_us": 2.0})
    done = bench("commits", "--base", "HEAD", "--runs", "2", "--data-dir", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert any(line.startswith("broker CPU us/msg") for line in done.stdout.splitlines())
    base, head = seen[0], seen[1]
    assert base != head
    assert head == f"{tmp_path}{os.pathsep}{tmp_path}/clients", "a broker comes with the client of its own commit"
    assert seen == [base, head, head, base]
    assert not Path(base.partition(os.pathsep)[0]).exists()
    assert bench("commits", "--base", "no-such-ref").exit_code == 1


def sources_of(pid: int) -> str:
    """Return where a broker was told to find its packages."""
    environment = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return next(line for line in environment if line.startswith("PYTHONPATH=")).partition("=")[2]
