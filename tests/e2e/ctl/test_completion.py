"""What the shells complete."""

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from click.shell_completion import ZshComplete
from click.testing import CliRunner

from tests.support.broker_process import TIMEOUT_S, BrokerProcess, environment
from tests.support.ctl import Ctl, ok
from tests.support.forked_broker import TOYMQCTL
from tests.support.forked_scripts import ForkedScripts
from toymq_py.config.topic_settings import TopicSettings
from toymqctl.cli import main as toymqctl
from toymqctl.settings import SETTINGS


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Path]:
    """`toymqctl` on the path of a shell."""
    path = tmp_path / "bin" / "toymqctl"
    path.parent.mkdir()
    with ForkedScripts(tmp_path) as scripts:
        scripts.write(path, TOYMQCTL)
        yield path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["toymqctl", "desc"], {"describe"}),
        (["toymqctl", "completion", ""], {"bash", "zsh", "fish"}),
        (["toymqctl", "describe", "tab."], {"tab.one", "tab.two"}),
        (["toymqctl", "seek", "tab.one", "wor"], {"worker"}),
        (["toymqctl", "sub", "t", "--no"], {"--no-ack"}),
        (["toymqctl", "sub", "tab.one", "--consumer", "wor"], {"worker"}),
        (["toymqctl", "sub", "--consumer", "wor"], {"worker"}),
        (["toymqctl", "sub", "t", "--mode", "s"], {"shared", "single"}),
        (["toymqctl", "pull", "tab.*", ""], {"worker"}),
        (["toymqctl", "dlq", "re"], {"redrive"}),
        (["toymqctl", "config", "tab.one", "retain_m"], {"retain_max_age=", "retain_max_bytes="}),
    ],
)
def test_bash_completes(ctl: Ctl, broker: BrokerProcess, program: Path, words: list[str], expected: set[str]) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    ok(ctl("pub", "tab.one", "x"))
    ok(ctl("pub", "tab.two", "x"))
    ok(ctl("sub", "tab.one", "--consumer", "worker", "--max", "1"))
    script = (
        'eval "$(toymqctl completion bash)"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        '_toymqctl_completion toymqctl; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    env = {**environment(), "TOYMQ_URL": f"127.0.0.1:{broker.port}"}
    env["PATH"] = f"{program.parent}:{env['PATH']}"
    done = subprocess.run(
        [bash, "-c", script, "bash", *words], env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.stderr == ""
    assert set(done.stdout.split()) == expected


def test_the_settings_that_are_completed_are_those_there_are() -> None:
    assert sorted(field.name for field in fields(TopicSettings)) == SETTINGS


def test_without_a_broker_nothing_is_completed_and_nothing_said() -> None:
    complete = ZshComplete(toymqctl, {}, "toymqctl", "_TOYMQCTL_COMPLETE")
    assert complete.get_completions(["--url", "127.0.0.1:1", "describe"], "") == []
    assert [item.value for item in complete.get_completions([], "fo")] == ["forget"]


@pytest.mark.parametrize(("shell", "text"), [("zsh", "#compdef toymqctl"), ("fish", "complete --no-files --command toymqctl")])
def test_other_shells_have_their_script(shell: str, text: str) -> None:
    assert text in ok(CliRunner().invoke(toymqctl, ["completion", shell]))
