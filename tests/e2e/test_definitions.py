"""``toymq definitions`` as an operator uses it, on a running broker and on a stopped one; ``--definitions`` at start."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.broker_process import BrokerProcess, run
from toymq_py.cli.main import main

WANTED = """\
[[topic]]
name = "orders.eu"
visibility = "2m"

[[topic.consumer]]
name = "billing"

[[topic]]
name = "plain"
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "wanted.toml"
    path.write_text(WANTED)
    return str(path)


def definitions(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["definitions", *arguments], input=stdin)


def test_the_same_on_a_running_and_on_a_stopped_broker(tmp_path: Path, file: str) -> None:
    data = str(tmp_path / "d")
    with BrokerProcess(data) as broker:
        url = f"--url=127.0.0.1:{broker.port}"
        would = definitions("diff", file, url)
        assert (would.exit_code, would.stdout.splitlines()) == (
            1, ["+ topic orders.eu visibility=2m", "+ consumer orders.eu billing start=earliest", "+ topic plain"],
        )  # fmt: skip
        assert definitions("import", file, url).stdout == would.stdout
        assert definitions("import", file, url).stdout == "nothing to change\n"
        assert definitions("export", url).stdout == WANTED
        refused = definitions("export", f"--data-dir={data}")
        assert refused.exit_code == 2
        assert refused.stderr == f"toymq: {data} is in use by process {broker.pid}: a running broker is reached with --url\n"
        broker.stop()
    here = f"--data-dir={data}"
    exported = definitions("export", "--json", here)
    assert json.loads(exported.stdout)["topic"][0] == {
        "name": "orders.eu", "visibility": 120_000, "consumer": [{"name": "billing"}],
    }  # fmt: skip
    assert definitions("diff", "-", here, stdin=exported.stdout).exit_code == 0
    changed = definitions("import", "-", here, "--json", stdin='[[topic]]\nname = "orders.eu"\ndedupe_keys = 5\n')
    assert json.loads(changed.stdout) == {
        "change": "change-settings", "topic": "orders.eu",
        "settings": {"dedupe_keys": "5", "visibility": "default"}, "before": {"dedupe_keys": "default", "visibility": "120000"},
    }  # fmt: skip
    same = definitions("diff", "-", here, stdin='[[topic]]\nname = "orders.eu"\ndedupe_keys = 5\n')
    assert (same.exit_code, same.stdout) == (
        0, "  consumer orders.eu billing is not in the file\n  topic plain is not in the file\n",
    )  # fmt: skip
    with BrokerProcess(data) as broker, broker.connect() as wire:
        assert wire.ask(b"CONFIG orders.eu\n") == b"JSON 18"
        assert json.loads(wire.line()) == {"dedupe_keys": 5}


def test_at_every_start(tmp_path: Path, file: str) -> None:
    with BrokerProcess(tmp_path / "d", "--definitions", file) as broker:
        url = f"--url=127.0.0.1:{broker.port}"
        assert definitions("export", url).stdout == WANTED
        with broker.connect() as wire:
            wire.ask(b"CONFIG orders.eu visibility=1\n")
        broker.kill()
        broker.start()
        assert definitions("export", url).stdout == WANTED, "what stands in the file holds again"
        code, errors = broker.stop()
        assert code == 0
        assert f"{file}: ~ topic orders.eu visibility=1ms -> 2m" in errors


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("[[topic]]\nvisibility = 1\n", [], "wanted.toml: topic number 1: it needs a name"),
        (WANTED, ["--max-topics", "1"], "topic plain: there are 1 topics, the limit (--max-topics)"),
    ],
)
def test_a_broker_does_not_start_with_less(tmp_path: Path, file: str, text: str, options: list[str], says: str) -> None:
    Path(file).write_text(text)
    done = run("serve", "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0", "--definitions", file, *options)
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[-1]
    assert done.stdout == ""


def test_what_cannot_be_reached(tmp_path: Path, file: str) -> None:
    absent = f"{tmp_path}/nowhere"
    assert definitions("export", f"--data-dir={absent}").stderr == f"toymq: there is no directory {absent}\n"
    nobody = definitions("export", "--url=127.0.0.1:1")
    assert (nobody.exit_code, "no broker at 127.0.0.1:1" in nobody.stderr) == (2, True)
    shown = definitions("export", "--url=toymq://s3cret@127.0.0.1:1")
    assert (shown.exit_code, "s3cret" in shown.output) == (2, False)
    done = run("serve", "--data-dir", str(tmp_path / "d"), "--definitions", "nowhere.toml")
    assert (done.returncode, "nowhere.toml" in done.stderr) == (2, True)
