"""`toymq` and `toymqctl` as a person uses them: output, exit codes, one line for an error."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.broker_process import COMMAND, ROOT, TIMEOUT_S, BrokerProcess, environment, run
from toymq_py.cli.main import main as toymq
from toymqctl.cli import main as toymqctl

CTL = [sys.executable, "-c", "from toymqctl.cli import main; main()"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("data") / "d") as running:
        yield running


def ctl(broker: BrokerProcess, *arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(toymqctl, ["--url", f"127.0.0.1:{broker.port}", *arguments], input=stdin)


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def test_publish_and_consume(broker: BrokerProcess) -> None:
    assert ok(ctl(broker, "pub", "greetings", "hello", "wörld")) == "OK 0\nOK 1\n"
    assert ok(ctl(broker, "sub", "greetings", "--max", "2")) == "0\thello\n1\twörld\n"
    assert ok(ctl(broker, "sub", "greetings", "--timeout", "50ms")) == "", "both are acked"


def test_a_key_makes_a_publish_safe_to_repeat(broker: BrokerProcess) -> None:
    assert ok(ctl(broker, "pub", "orders", "x", "--key", "order-17")) == "OK 0\n"
    assert ok(ctl(broker, "pub", "orders", "x", "--key", "order-17")) == "DUP 0\n"
    assert ok(ctl(broker, "sub", "orders", "--max", "1")) == "0 key=order-17\tx\n"


def test_lines_of_a_file_and_of_stdin(broker: BrokerProcess, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"line %d\n" % n for n in range(3000)) + b"the last one has no newline")
    result = ctl(broker, "pub", "lines", "--file", str(path))
    assert ok(result) == "published 3001\n"
    assert "publishing to lines" in result.stderr, "a progress bar"
    assert ok(ctl(broker, "pub", "lines", stdin=b"one\n\ntwo\n")) == "published 3\n"
    out = ok(ctl(broker, "sub", "lines", "--format", "raw", "--timeout", "200ms")).splitlines()
    assert out == [*(f"line {n}" for n in range(3000)), "the last one has no newline", "one", "", "two"]


def test_formats(broker: BrokerProcess) -> None:
    with broker.connect() as wire:
        assert wire.ask(b"PUB formats k 9 hdr=5\nA: b\na\n\xff\n\n") == b"OK 0"
    first, second = (ok(ctl(broker, "sub", "formats", "--no-ack", "--max", "1", "--format", form)) for form in ("json", "json"))
    assert json.loads(first) == {
        "topic": "formats", "id": 0, "attempt": 1, "ts_ns": json.loads(first)["ts_ns"], "key": "k",
        "headers": {"A": "b"}, "payload_b64": "YQr/Cg==",
    }  # fmt: skip
    assert json.loads(second)["attempt"] == 2, "without an ack it comes again"
    assert ctl(broker, "sub", "formats", "--no-ack", "--max", "1").stdout_bytes == b"0 key=k attempt=3\ta\\n\xff\\n\n"
    ok(ctl(broker, "pub", "formats", "text"))
    assert json.loads(ok(ctl(broker, "sub", "formats", "--consumer", "x", "--start", "1", "--max", "1", "--format", "json")))[
        "payload"
    ] == "text"  # fmt: skip


def test_topics_as_table_and_json(broker: BrokerProcess) -> None:
    ok(ctl(broker, "pub", "listed.a", "x", "y"))
    ok(ctl(broker, "sub", "listed.a", "--max", "1"))
    header, row = ok(ctl(broker, "topics", "listed.*")).splitlines()
    assert header.split() == ["topic", "messages", "size", "consumers", "backlog", "oldest", "inflight", "state"]
    (found,) = map(json.loads, ok(ctl(broker, "topics", "listed.a", "--json")).splitlines())
    *others, oldest, inflight, state = row.split()
    assert (others, inflight, state) == (["listed.a", "2", f"{found['bytes']}B", "1", "1"], "0", "ok")
    assert oldest.endswith("s")
    assert (found["topic"], found["messages"], found["next_id"]) == ("listed.a", 2, 2)
    assert ok(ctl(broker, "topics", "nothing.*")) == "no topics\n"


def test_ping(broker: BrokerProcess) -> None:
    lines = ok(ctl(broker, "ping", "--count", "3")).splitlines()
    assert len(lines) == 3
    assert all(line.startswith("PONG in ") and line.endswith(" ms") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["pub", "../x", "y"], 1, "toymqctl: BAD_NAME: topic name must be"),
        (["pub", "t", "y", "z", "--key", "k"], 2, "--key goes with exactly one PAYLOAD"),
        (["pub", "t", "y", "--file", __file__], 2, "exclude each other"),
        (["pub", "t", "y", "--key", "a b"], 1, "toymqctl: BAD_ARGUMENT: invalid key 'a b': write 1 to 512"),
        (["sub", "t", "--start", "soon"], 2, "invalid position 'soon': write earliest, latest, a message id"),
        (["sub", "t", "--timeout", "soon"], 2, "invalid duration 'soon'"),
        (["topics", "a*"], 1, "toymqctl: BAD_NAME: a wildcard is a whole word"),
        (["pub", "t.dlq", "y"], 1, "FORBIDDEN: t.dlq holds dead letters, which the broker alone writes: publish to t\n"),
        (["nonsense"], 2, "No such command 'nonsense'"),
    ],
)
def test_an_error_is_one_clear_line(broker: BrokerProcess, arguments: list[str], code: int, text: str) -> None:
    result = ctl(broker, *arguments)
    assert result.exit_code == code
    assert text in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_nobody_there() -> None:
    result = CliRunner().invoke(toymqctl, ["--url", "127.0.0.1:1", "ping"])
    assert result.exit_code == 1
    assert result.stderr == (
        "toymqctl: no broker at 127.0.0.1:1: start one with `make run` or `toymq serve`, or name another with --url\n"
    )
    for url in ("ftp://x", "toymq://h:99999999"):
        result = CliRunner().invoke(toymqctl, ["ping"], env={"TOYMQ_URL": url})
        assert result.exit_code == 2
        assert "a broker's URL is" in result.stderr


def test_a_consumer_that_is_taken_over_is_told(broker: BrokerProcess) -> None:
    command = [*CTL, "--url", f"127.0.0.1:{broker.port}", "sub", "taken"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        ok(ctl(broker, "pub", "taken", "x"))
        assert first.stdout.readline() == "0\tx\n", "it is subscribed"
        ok(ctl(broker, "sub", "taken", "--timeout", "10ms"))
        _, errors = first.communicate(timeout=10)
    assert first.returncode == 1
    assert 'TAKEN_OVER, another session subscribed as toymqctl; mode="shared" in both shares' in errors
    assert "(for toymqctl: --mode shared, or another --consumer to have both)" in errors


@pytest.mark.parametrize("program", [CTL, COMMAND])
def test_help_teaches_and_a_version_is_one(program: list[str]) -> None:
    shown = subprocess.run([*program, "--help"], env=environment(), capture_output=True, text=True, check=True, timeout=20)
    assert "toymqctl pub orders hello" in shown.stdout


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """Return a data directory with two topics whose broker was stopped."""
    with BrokerProcess(tmp_path / "d") as running:
        with running.connect() as wire:
            wire.send(b"PUB a k 6 hdr=5\nA: b\nx\nPUB a - 2\n\xff\xfe\nPUB a - 4\nlast\nPUB b - 1\ny\n")
            assert [wire.line() for _ in range(4)] == [b"OK 0", b"OK 1", b"OK 2", b"OK 0"]
        running.stop()
    return tmp_path / "d"


def test_verify_names_what_is_damaged(stopped: Path) -> None:
    good = CliRunner().invoke(toymq, ["verify", str(stopped)])
    assert good.exit_code == 0
    assert good.stdout.splitlines() == [
        "a: ok, 3 records in 1 segment, 108 bytes, ids 0 to 2",
        "b: ok, 1 record in 1 segment, 31 bytes, id 0",
    ]
    (log,) = (stopped / "topics" / "a").glob("*.log")
    data = bytearray(log.read_bytes())
    data[50] ^= 1
    log.write_bytes(data)
    bad = CliRunner().invoke(toymq, ["verify", str(stopped)])
    assert bad.exit_code == 1
    assert "a: DAMAGED, 2 records in 1 segment, 108 bytes, ids 0 to 2, 1 lost" in bad.stdout
    assert f"  damage: {log}: damage from byte 42 to 74: record 1 is lost" in bad.stdout
    rows = CliRunner().invoke(toymq, ["verify", str(stopped), "--json"]).stdout.splitlines()
    assert [json.loads(row)["lost"] for row in rows] == [1, 0]


def test_verify_beside_a_broker_says_so(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker:
        with broker.connect() as wire:
            assert wire.ask(b"PUB a - 1\nx\n") == b"OK 0"
        beside = run("verify", str(tmp_path / "d"))
        assert beside.returncode == 0
        (line,) = [each for each in beside.stderr.splitlines() if each.startswith("toymq: ")]
        assert f"is open in a broker, process {broker.pid}: what it writes meanwhile may show as damage; stop it" in line
        broker.stop()
    assert "is open" not in run("verify", str(tmp_path / "d")).stderr


def test_verify_of_nothing(tmp_path: Path) -> None:
    """Otherwise a job that verifies the wrong path would pass for ever."""
    result = CliRunner().invoke(toymq, ["verify", str(tmp_path)])
    assert "is not a data directory: it has no topics directory" in result.stderr
    (tmp_path / "topics").mkdir()
    assert CliRunner().invoke(toymq, ["verify", str(tmp_path)]).stdout == "no topics\n"
    result = CliRunner().invoke(toymq, ["verify", str(tmp_path / "missing")])
    assert result.exit_code == 2
    assert "there is no directory" in result.stderr


def test_dump_prints_records(stopped: Path) -> None:
    rows = [json.loads(row) for row in CliRunner().invoke(toymq, ["dump", str(stopped), "a"]).stdout.splitlines()]
    for row in rows:
        del row["ts_ns"]
    assert rows == [
        {"id": 0, "key": "k", "headers": "A: b\n", "payload": "x"},
        {"id": 1, "payload_b64": "//4="},
        {"id": 2, "payload": "last"},
    ]
    raw = CliRunner().invoke(toymq, ["dump", str(stopped), "a", "--from", "1", "--max", "1", "--format", "raw"])
    assert raw.stdout_bytes == b"\xff\xfe\n"
    missing = CliRunner().invoke(toymq, ["dump", str(stopped), "nothing"])
    assert missing.exit_code == 2
    assert "there is no topic nothing" in missing.stderr
    (log,) = (stopped / "topics" / "a").glob("*.log")
    data = bytearray(log.read_bytes())
    data[50] ^= 1
    log.write_bytes(data)
    damaged = CliRunner().invoke(toymq, ["dump", str(stopped), "a"])
    assert '{"note": "byte 42 to 74: record 1 is lost"}' in damaged.stdout


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--listen", "nowhere"], "'nowhere' is not an address"),
        (["--listen", "127.0.0.1:99999"], "is not an address"),
        (["--listen", "0.0.0.0:0"], "--insecure-public"),
        (["--segment-bytes", "1"], "'--segment-bytes': 1B is out of range: it must be 4KiB to 1GiB"),
        (["--max-payload", "65MiB"], "'--max-payload': 65MiB is out of range: it must be 1B to 64MiB"),
        (["--visibility", "soon"], "invalid duration 'soon'"),
        (["--min-free-bytes", "lots"], "invalid size 'lots'"),
        (["--fsync", "sometimes"], "'sometimes' is not one of always, interval, never"),
        (["--data-dir", "/proc/nowhere/d"], "/proc/nowhere"),
        (["--listen", "192.0.2.1:1", "--insecure-public"], "cannot listen on 192.0.2.1:1"),
    ],
)
def test_serve_refuses_what_makes_no_sense(options: list[str], text: str, tmp_path: Path) -> None:
    arguments = ["--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0", *options]
    done = run("serve", *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_an_option_from_the_environment(tmp_path: Path) -> None:
    env = {**environment(), "TOYMQ_SEGMENT_BYTES": "12"}
    done = subprocess.run(
        [*COMMAND, "serve", "--data-dir", str(tmp_path / "d")], env=env, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 2
    assert "'--segment-bytes': 12B is out of range: it must be 4KiB to 1GiB (from TOYMQ_SEGMENT_BYTES)" in done.stderr


def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"".join(b"line %d\n" % (n // 2) for n in range(400)))
    done = run("demo", "--file", str(path), timeout_s=60, executed=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "every promise was kept"
    assert "published 400, consumed 400, lost 0" in lines
    digests = [line.split()[2] for line in lines if line.startswith("sha256")]
    assert len(digests) == 2
    assert digests[0] == digests[1]


def test_the_demo_needs_something_to_show(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one line\n")
    result = CliRunner().invoke(toymq, ["demo", "--file", str(path)])
    assert result.exit_code == 2
    assert "fewer than 4 lines" in result.stderr


COMMANDS = {
    "toymq": "toymq_py", "toymqctl": "toymqctl", "toymq-bench": "toymq_bench", "toymq-chaos": "toymq_chaos",
    "toymq-pipeline": "toymq_spark",
}  # fmt: skip


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@pytest.mark.parametrize("module", COMMANDS.values())
@pytest.mark.parametrize("when", ["toymq_py.command_line", "click", "toymq_py.units"])
def test_ctrl_c_while_a_command_line_is_being_loaded_is_quiet(module: str, when: str) -> None:
    interrupted = f"""
import sys
class Impatient:
    def find_spec(self, name, path, target=None):
        if name == "{when}":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Impatient())
from {module}.__main__ import main
main()
"""
    done = python("-c", interrupted, "--help")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_every_script_begins_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {name: f"{module}.__main__:main" for name, module in COMMANDS.items()}


@pytest.mark.parametrize("module", COMMANDS.values())
def test_a_package_runs_as_its_command(module: str) -> None:
    done = python("-m", module, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: python -m {module}")


def test_a_command_without_its_extra_names_it_in_one_line() -> None:
    done = python("-c", "import sys; sys.modules['hdrh'] = None; from toymq_bench.__main__ import main; main()", "pub")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "toymq-bench needs hdrh: in a checkout of toymq, pip install '.[bench]'\n"


OWN_NAME = "from toymq_bench.__main__ import main"
OF_TOYMQ = "sys.argv.insert(1, 'bench'); from toymq_py.__main__ import main"


@pytest.mark.parametrize(
    ("start", "arguments"),
    [(OWN_NAME, ("pub", "--help")), (OWN_NAME, ("--version",)), (OF_TOYMQ, ("--help",)), (OF_TOYMQ, ("peers", "--help"))],
)
def test_help_of_the_benchmark_needs_no_extra(start: str, arguments: tuple[str, ...]) -> None:
    done = python("-c", f"import sys; sys.modules['hdrh'] = None; {start}; main()", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(("Usage: ", "toymq-bench, version", "toymq bench, version"))


def test_a_benchmark_without_its_extra_names_it_before_it_begins() -> None:
    start = "import sys; sys.modules['hdrh'] = None; from toymq_py.__main__ import main; main()"
    done = python("-c", start, "bench", "pub", "--data-dir", "/")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "toymq: bench needs hdrh: in a checkout of toymq, pip install '.[bench]'\n"


def test_what_no_extra_brings_is_a_bug_and_has_its_traceback() -> None:
    done = python("-c", "import sys; sys.modules['click'] = None; from toymq_bench.__main__ import main; main()", "pub")
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr


def test_a_reader_that_goes_away_is_no_error(broker: BrokerProcess) -> None:
    shell = shutil.which("sh")
    assert shell is not None
    ok(ctl(broker, "pub", "piped", stdin=b"x\n" * 5000))
    line = " ".join(f"'{part}'" for part in CTL) + f" --url 127.0.0.1:{broker.port} sub piped --no-ack --timeout 2s | head -n 1"
    done = subprocess.run([shell, "-c", line], env=environment(), capture_output=True, text=True, timeout=20, check=False)
    assert done.stdout == "0\tx\n"
    assert done.stderr == ""


def test_a_reader_of_toymq_that_goes_away_is_no_error() -> None:
    """Found: `toymq config show | head -1` ended with the exit code of a wrong usage."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [*COMMAND, "config", "show"]
        done = subprocess.run(command, env=environment(), stdout=writing, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
