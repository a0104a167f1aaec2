"""The guides tell the truth: every program in them runs against a real broker and prints what the guide shows."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker_process import ROOT, TIMEOUT_S, BrokerProcess, environment, run_program
from toymq.broker_process import TOYMQ

GUIDES = (
    "quickstart", "delivery-guarantees", "reconnects", "idempotent-publishing", "work-queues", "workers", "order-per-key",
    "partitions", "dead-letters", "delays-and-expiry", "embedded", "tracing", "testing-your-app",
)  # fmt: skip
COMING = sorted(path.stem for path in (ROOT / "docs").glob("coming-from-*.md"))
"""Pages with the other system's code (```py, not run) beside ours (```python and what it prints)."""
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def text_of(guide: str) -> str:
    return (ROOT / "docs" / f"{guide}.md").read_text()


def programs() -> list[tuple[str, str, str]]:
    """Return (guide and number, program, what it prints)."""
    found = []
    for guide in GUIDES[:-1]:
        blocks = [(kind, text) for kind, text in BLOCK.findall(text_of(guide)) if kind != "sh"]
        assert len(blocks) % 2 == 0, f"{guide}: a program and what it prints, in turn"
        for number, ((kind, program), (said_kind, said)) in enumerate(zip(blocks[::2], blocks[1::2], strict=True)):
            assert (kind, said_kind) == ("python", "text"), f"{guide}: a program and what it prints, in turn"
            found.append((f"{guide} {number}", program, said))
    return found


CLIENTS = ("toymq", "toymq.sync.client", "toymq.workers.app", "toymq_py.embedded.asyncio", "toymq_py.embedded.blocking")
"""What nearly every program imports; what one imports beside them is its own."""


def run_of(
    program: str, broker: BrokerProcess, folder: Path, warnings: str = "error"
) -> "subprocess.CompletedProcess[str]":
    program = program.replace("127.0.0.1:6789", f"127.0.0.1:{broker.port}")
    return run_program(program, folder, preloaded=CLIENTS, warnings=warnings)


SAID_AGAIN = {
    "quickstart 0": "Receipt(msg_id=1, duplicate=False)\n1 b'hello'\n",
    "quickstart 1": "19999\n10000\n",
    "quickstart 2": "3\n4\n5\na\nb\nc\n",
    "idempotent-publishing 0": "".join(f"Receipt(msg_id={n}, duplicate=True)\n" for n in (0, 1, 0, 1)),
    "partitions 1": (
        "3 12 [4, 4, 4]\n{'retain_max_age': 3600} {'partitions': 3}\nparted-logs#1 2\nparted-logs#1 3\n"
        "3 partitions of parted-logs, parted-logs#0 to parted-logs#2: name one\n"
    ),
    "embedded 0": "Receipt(msg_id=1, duplicate=False)\nb'image 17'\n",
    "embedded 2": (
        "2 3\nthe backlog of jobs has reached 2 messages (backlog_max_messages); publish later\n2 b'resize' 2\nb'crop' 0\n"
    ),
    "coming-from-kafka 0": "stored before\n" * 3,
}
"""What programs say the second time, where it is not what they said at first."""


TIMES = pytest.mark.parametrize(
    "times", [pytest.param(1, id="once"), pytest.param(2, id="and-again", marks=pytest.mark.torture)]
)


@TIMES
def test_every_program_says_what_its_guide_says_on_one_broker(tmp_path: Path, times: int) -> None:
    """The programs run as a reader runs them: in the order of GUIDES, in one directory, on one broker, and then once more."""
    with BrokerProcess(tmp_path / "d") as broker:
        for again in ({}, SAID_AGAIN)[:times]:
            for name, program, said in programs():
                done = run_of(program, broker, tmp_path)
                assert done.stderr == "", name
                assert done.stdout == again.get(name, said), name


def test_the_readme_links_every_guide() -> None:
    assert set(GUIDES) <= set(re.findall(r"\]\(docs/([\w-]+)\.md\)", README))


@TIMES
@pytest.mark.parametrize("page", COMING)
def test_our_code_of_a_coming_from_page_runs_on_one_broker_and_theirs_compiles(page: str, tmp_path: Path, times: int) -> None:
    blocks = BLOCK.findall(text_of(page))
    for kind, program in blocks:
        if kind == "py":
            compile(program, page, "exec")
    ours = [(kind, text) for kind, text in blocks if kind != "py"]
    assert len(ours) >= 2
    assert [kind for kind, _ in ours] == ["python", "text"] * (len(ours) // 2)
    with BrokerProcess(tmp_path / "d") as broker:
        for again in ({}, SAID_AGAIN)[:times]:
            for number, ((_, program), (_, said)) in enumerate(zip(ours[::2], ours[1::2], strict=True)):
                done = run_of(program, broker, tmp_path)
                assert (done.stderr, done.stdout) == ("", again.get(f"{page} {number}", said)), program


@pytest.mark.torture
def test_the_installation_of_the_quickstart_gives_the_commands(tmp_path: Path) -> None:
    """The command is run as it is written, with what pip finds."""
    (block,) = [text for kind, text in BLOCK.findall(text_of("quickstart")) if "pip wheel" in text]
    checkout = tmp_path / "toymq"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "tests"))
    shutil.copy(ROOT / ".gitignore", checkout)
    found = {**os.environ, "HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["sh", "-ec", block], cwd=checkout, env=found, check=True, capture_output=True)
    for name in ("toymq", "toymqctl"):
        done = subprocess.run([tmp_path / "shop/.venv/bin" / name, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(name)


def test_the_jobs_in_processes_of_the_page_of_workers(tmp_path: Path) -> None:
    (block,) = [text for kind, text in BLOCK.findall(text_of("workers")) if "<<'END'" in text]
    *program, last = block.splitlines()
    subprocess.run(["sh", "-ec", "\n".join(program)], cwd=tmp_path, check=True)
    with BrokerProcess(tmp_path / "d") as broker:
        found = {**environment(), "TOYMQ_URL": broker.url}
        assert last == "toymq worker pages:app"
        with subprocess.Popen([*TOYMQ, *last.split()[1:]], cwd=tmp_path, env=found) as worker:
            call = "import asyncio, pages\nasync def main():\n  async with pages.app: print(await pages.render.call('a'))\n"
            done = subprocess.run(
                [sys.executable, "-c", f"{call}asyncio.run(main())"],
                cwd=tmp_path, env=found, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
            worker.terminate()
            assert (worker.wait(TIMEOUT_S), done.stderr, done.stdout) == (0, "", "333332833333500000\n")


def test_the_programs_of_the_page_of_amqp_say_what_it_says(tmp_path: Path) -> None:
    for client in ("pika", "kombu", "celery"):
        pytest.importorskip(client)
    blocks = [(kind, text) for kind, text in BLOCK.findall(text_of("amqp")) if kind != "sh"]
    with BrokerProcess(tmp_path / "d", "--amqp", "127.0.0.1:0") as broker:
        for (kind, program), (_, said) in zip(blocks[::2], blocks[1::2], strict=True):
            done = run_of(program.replace("amqp://127.0.0.1:5672", broker.amqp), broker, tmp_path, "ignore")
            assert (kind, done.stderr, done.stdout) == ("python", "", said), program


def test_the_readme_links_every_coming_from_page() -> None:
    assert sorted(re.findall(r"\]\(docs/(coming-from-[\w-]+)\.md\)", README)) == COMING


def test_the_shell_commands_of_the_quickstart_do_what_it_says(tmp_path: Path) -> None:
    commands = re.findall(r"^\.venv-run/bin/toymqctl (\w+)((?: \w+)*) *(?:# (.*))?$", text_of("quickstart"), re.MULTILINE)
    assert [name for name, _, _ in commands] == ["pub", "sub", "topics"]
    with BrokerProcess(tmp_path / "d") as broker:
        printed = []
        for name, arguments, _ in commands:
            ends = ["--max", "1"] if name == "sub" else []  # as it stands it waits for more
            done = subprocess.run(
                [sys.executable, "-m", "toymqctl", name, *arguments.split(), *ends],
                env={**environment(), "TOYMQ_URL": f"toymq://127.0.0.1:{broker.port}"},
                capture_output=True, text=True, timeout=TIMEOUT_S, check=True,
            )  # fmt: skip
            printed.append(done.stdout)
    assert printed[0] == commands[0][2] + "\n" == "OK 0\n"
    assert "hello" in printed[1]
    assert "orders" in printed[2]
