"""A forked broker behaves like an executed one, wherever a test could look."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.broker_process import TIMEOUT_S, BrokerProcess, environment, run, run_program
from tests.support.forked_broker import TOYMQ, ForkedBroker, can_fork
from tests.support.forked_broker import run as forked_run
from tests.support.forked_scripts import ForkedScripts
from toymq.broker_process import StartFailed

EXECUTED = pytest.mark.parametrize("executed", [False, True], ids=["forked", "executed"])


def looks(broker: BrokerProcess) -> tuple[object, ...]:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    signals = re.findall(r"^(SigBlk|SigIgn|SigCgt|Umask):\s*(\w+)$", status, re.MULTILINE)
    descriptors = Path(f"/proc/{broker.pid}/fd")
    kinds = sorted(re.sub(r"\d+", "n", str(each.readlink())) for each in descriptors.iterdir())
    return signals, kinds, str(Path(f"/proc/{broker.pid}/cwd").readlink())


@pytest.mark.require("proc")
def test_its_signals_descriptors_and_folder_are_those_of_an_executed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    seen = []
    for executed in (False, True):
        with BrokerProcess("d", executed=executed) as broker:
            assert isinstance(broker._process, ForkedBroker) is not executed
            seen.append(looks(broker))
    assert seen[0] == seen[1]
    assert str(tmp_path) in seen[0]


@EXECUTED
def test_it_ends_as_it_is_told(tmp_path: Path, executed: bool) -> None:
    with BrokerProcess(tmp_path / "d", executed=executed) as broker:
        assert broker.stop() == 0
        broker.start()
        broker.kill()
        assert broker.returncode == -signal.SIGKILL


@EXECUTED
def test_its_variables_are_those_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executed: bool) -> None:
    monkeypatch.setenv("TOYMQ_MAX_TOPICS", "many")
    with pytest.raises(StartFailed, match="TOYMQ_MAX_TOPICS"):
        BrokerProcess(tmp_path / "d", executed=executed).start()


def test_what_the_interpreter_reads_at_its_start_is_a_reason_to_execute(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_fork(dict(os.environ) | {"PYTHONPATH": "x"}) is False


@pytest.mark.parametrize("arguments", [("verify", "/none"), ("--version",), ("nothing",)], ids=" ".join)
def test_a_command_says_the_same(arguments: tuple[str, ...]) -> None:
    forked, executed = run(*arguments), run(*arguments, executed=True)
    assert (forked.returncode, forked.stdout, forked.stderr) == (executed.returncode, executed.stdout, executed.stderr)


def test_a_command_ends_without_a_look_at_every_object() -> None:
    """Python's last collection takes longer than the command's start, so it is skipped; atexit functions still run."""
    at_end = "import atexit\nclass A:\n  def __del__(self): print('seen')\na = A()\na.a = a\natexit.register(print, 'ended')\n"
    done = forked_run(at_end + TOYMQ, "--version", environment=environment(), timeout_s=TIMEOUT_S)
    assert (done.returncode, done.stdout.splitlines()[1:], done.stderr) == (0, ["ended"], "")


@pytest.mark.parametrize(
    "program",
    [
        "from dataclasses import dataclass\n@dataclass\nclass A:\n  b: 'int'\nprint(A(1), __name__, A.__module__)",
        "import os, sys\nprint(os.getcwd(), sys.argv, sys.warnoptions)\nsys.exit(3)",
        "import warnings\nwarnings.warn('w')",
        "import gc\nclass A:\n  def __del__(self): print('collected at the end')\na = A()\na.a = a",
    ],
    ids=["main", "place", "warning", "end"],
)
def test_a_program_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    said = []
    for can in (True, False):
        monkeypatch.setattr("tests.support.broker_process.can_fork", lambda _, can=can: can)
        done = run_program(program, tmp_path, preloaded=("toymq",))
        said.append((done.returncode, done.stdout, done.stderr.splitlines()[-1:]))
    assert said[0] == said[1]


def test_a_program_that_does_not_end_is_killed() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        forked_run("import time; time.sleep(60)", environment=environment(), timeout_s=0.01)


@pytest.mark.parametrize("can", [True, False], ids=["forked", "executed"])
@pytest.mark.parametrize(("program", "code"), [("sys.exit(3)", 3), ("sys.exit('no')", 1)])
def test_a_script_reads_and_writes_as_a_program_of_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, code: int, can: bool
) -> None:
    monkeypatch.setattr("tests.support.forked_scripts.can_fork", lambda _: can)
    with ForkedScripts(tmp_path) as scripts:
        says = "import os, sys\nprint(sys.stdin.read(), sys.argv[1:], os.environ['A'], flush=True)\n"
        scripts.write(tmp_path / "it", says + program)
        line = f"echo in | A=b {tmp_path}/it c 'd e'"
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (code, "in\n ['c', 'd e'] b\n")
    assert done.stderr == ("no\n" if code == 1 else "")


def test_a_script_that_is_killed_before_its_program_ends_stops_no_other(tmp_path: Path) -> None:
    """Spark kills scripts like this. Found: the process to fork from ended with BrokenPipeError, and all later scripts waited
    for ever."""
    with ForkedScripts(tmp_path) as scripts:
        scripts.write(tmp_path / "it", "import sys; print('begun', flush=True); sys.stdin.read()")
        held, holds = os.pipe()
        with subprocess.Popen([tmp_path / "it"], stdin=held, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            process.kill()
            process.wait()
            os.close(held)
            os.close(holds)  # now the program ends
            assert process.stdout.read() == "", "it has ended"
        for _ in range(2):  # the end of the first one comes behind that of the killed one
            done = subprocess.run([tmp_path / "it"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True)
            assert done.stdout == b"begun\n"
