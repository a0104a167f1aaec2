"""Worker processes: restarted when they die, ended together, started anew when a source changes."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import TIMEOUT_S, environment
from toymq.workers.processes import Processes, sources

CHILD = """
import os, sys, pathlib
place = pathlib.Path({folder!r})
(place / f"began-{{os.getpid()}}").touch()
{body}
import select
select.select([int(sys.argv[-1])], [], [])  # until the parent is gone
(place / f"orphan-{{os.getpid()}}").touch()
"""


def test_sources_are_python_files_outside_of_environments(tmp_path: Path) -> None:
    for name in ("a.py", "b/c.py", "b/d.txt", ".git/e.py", "env/pyvenv.cfg", "env/f.py", "build/g.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert sorted(Path(path).name for path, _ in sources(tmp_path)) == ["a.py", "c.py"]


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def began(folder: Path) -> list[int]:
    return sorted(int(path.name.partition("-")[2]) for path in folder.glob("began-*"))


def run(processes: Processes, *steps: Callable[[], object]) -> int:
    """Run the processes here, and the steps in another thread; then send SIGTERM."""
    failed: list[BaseException] = []

    def drive() -> None:
        try:
            for step in steps:
                step()
        except BaseException as error:  # noqa: BLE001
            failed.append(error)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=drive)
    thread.start()
    code = processes.run()
    thread.join()
    assert failed == []
    return code


def until(done: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(int(TIMEOUT_S / 0.02)):
        if done():
            return
        waiting.wait(0.02)
    raise AssertionError("it did not come to that in time")


def begun(folder: Path, count: int) -> Callable[[], None]:
    return lambda: until(lambda: len(began(folder)) == count)


def command(folder: Path, body: str = "") -> list[str]:
    return [sys.executable, "-c", CHILD.format(folder=str(folder), body=body)]


@pytest.mark.usefixtures("handlers")
def test_a_process_that_is_killed_is_replaced_and_all_end_together(tmp_path: Path) -> None:
    processes = Processes(command(tmp_path), [(), ()], watch=None, shutdown_s=1)
    first: list[int] = []

    def kill() -> None:
        first.extend(began(tmp_path))
        os.kill(first[0], signal.SIGKILL)

    assert run(processes, begun(tmp_path, 2), kill, begun(tmp_path, 3)) == 0
    for pid in began(tmp_path):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.usefixtures("handlers")
def test_a_command_that_cannot_run_is_not_tried_again(tmp_path: Path) -> None:
    processes = Processes(command(tmp_path, "sys.exit(2)"), [()], watch=None, shutdown_s=1)
    assert processes.run() == 2
    assert len(began(tmp_path)) == 1


@pytest.mark.usefixtures("handlers")
def test_a_changed_source_starts_all_anew(tmp_path: Path) -> None:
    source = tmp_path / "app.py"
    source.write_text("1")
    processes = Processes(command(tmp_path), [()], watch=tmp_path, shutdown_s=1)

    def change() -> None:
        os.utime(source, ns=(1, 1))

    assert run(processes, begun(tmp_path, 1), change, begun(tmp_path, 2)) == 0


@pytest.mark.usefixtures("handlers")
def test_an_app_that_cannot_be_loaded_is_tried_again_when_a_source_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With --reload an app with a syntax error is loaded again after an edit."""
    source = tmp_path / "app.py"
    source.write_text("1")
    fails_first = "broken = place / 'broken'\nif not broken.exists(): broken.touch(); sys.exit(2)"
    processes = Processes(command(tmp_path, fails_first), [()], watch=tmp_path, shutdown_s=1)

    def change() -> None:
        until(lambda: "the workers wait until a source file changes" in caplog.text)
        os.utime(source, ns=(1, 1))

    assert run(processes, begun(tmp_path, 1), change, begun(tmp_path, 2)) == 0


@pytest.mark.usefixtures("handlers")
def test_the_second_ctrl_c_waits_for_no_process(tmp_path: Path) -> None:
    ignores = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); (place / 'deaf').touch()"
    processes = Processes(command(tmp_path, ignores), [()], watch=None, shutdown_s=3600)

    def interrupt_twice() -> None:
        until((tmp_path / "deaf").exists)
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: processes._stopping)
        os.kill(os.getpid(), signal.SIGINT)

    assert run(processes, interrupt_twice) == 0


@pytest.mark.usefixtures("handlers")
def test_what_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toymq.workers.processes.KILLED_BEHIND_S", 0.0)
    ignores = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); (place / 'deaf').touch()"
    processes = Processes(command(tmp_path, ignores), [()], watch=None, shutdown_s=0.01)
    assert run(processes, lambda: until((tmp_path / "deaf").exists)) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(began(tmp_path)[0], 0)


def test_processes_learn_that_their_parent_was_killed(tmp_path: Path) -> None:
    program = (
        "import sys; from toymq.workers.processes import Processes;"
        f"Processes({command(tmp_path)!r}, [(), ()], watch=None, shutdown_s=1).run()"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], env=environment())
    until(lambda: len(began(tmp_path)) == 2)
    parent.kill()
    parent.wait()
    until(lambda: len(list(tmp_path.glob("orphan-*"))) == 2)
