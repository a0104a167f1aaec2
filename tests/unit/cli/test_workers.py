"""``toymq workers``."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from toymq_py.cli.main import main
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.workers_file import UNDIVIDABLE, divide, part_of


def test_it_shows_and_changes_the_number(tmp_path: Path) -> None:
    directory = str(tmp_path / "data")
    (tmp_path / "data/topics/orders").mkdir(parents=True)
    run = CliRunner().invoke
    assert run(main, ["workers", directory]).output == f"{directory}: 1 worker\n"
    assert run(main, ["workers", directory, "--set", "2"]).output == (
        f"{directory}: 2 workers, 1 topic moved; `toymq serve --workers 2` serves it\n"
    )
    assert run(main, ["workers", directory]).output == f"{directory}: 2 workers\n"
    assert run(main, ["workers", directory, "--set", "1"]).output == (
        f"{directory}: 1 worker, 1 topic moved; `toymq serve` serves it\n"
    )
    assert (tmp_path / "data/topics/orders").is_dir()


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    ended = CliRunner().invoke(main, ["workers", str(tmp_path / "missing"), "--set", "2"])
    assert ended.exit_code == 2
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("content", [None, "garbage"])
def test_the_remedy_that_each_command_names_for_a_lost_number_works(tmp_path: Path, content: str | None) -> None:
    """Found: one command advised `--set`, which did not accept the directory; another advised one process, which saw an empty
    directory."""
    data = tmp_path / "data"
    (data / "topics/orders").mkdir(parents=True)
    (data / "topics/events").mkdir()
    run = CliRunner().invoke
    assert run(main, ["workers", str(data), "--set", "2"]).exit_code == 0
    (data / "workers.json").unlink()
    if content is not None:
        (data / "workers.json").write_text(content)
    listen = ("--data-dir", str(data), "--listen", "127.0.0.1:0")
    for command in (
        ("workers", str(data)), ("verify", str(data)), ("repair", str(data)), ("backup", str(data), str(tmp_path / "copy")),
        ("serve", *listen), ("serve", *listen, "--workers", "2"),
    ):  # fmt: skip
        ended = run(main, list(command))
        assert (ended.exit_code, f"`toymq workers {data} --set 2` makes it again" in ended.stderr) == (2, True), ended.output
    assert not (data / "topics").exists()
    told = run(main, ["workers", str(data), "--set", "2"]).output
    assert told == f"{data}: 2 workers, 0 topics moved; `toymq serve --workers 2` serves it\n"
    assert run(main, ["workers", str(data)]).output == f"{data}: 2 workers\n"


def test_the_parts_of_a_divided_directory_are_restored_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: a backup said that it is for a stopped broker, and a restored part that one process can serve it."""
    monkeypatch.chdir(tmp_path)
    run = CliRunner().invoke
    for topic in ("orders", "events"):
        (tmp_path / "data/topics" / topic).mkdir(parents=True)
    assert run(main, ["workers", "data", "--set", "2"]).exit_code == 0
    refused = run(main, ["backup", "data", "copy"])
    assert (refused.exit_code, refused.stderr.splitlines()[-1]) == (
        2, "toymq: data is divided over 2 workers: `toymq serve --workers 2` serves it, and the other commands take the "
        "directory of one worker after the other, such as data/workers/0",
    )  # fmt: skip
    missing = run(main, ["backup", "data/workers/0", "copy/workers/0"])
    assert "toymq: there is no directory copy/workers: make it before copy/workers/0" in missing.stderr
    Path("copy").mkdir()
    for worker in range(2):
        assert run(main, ["backup", f"data/workers/{worker}", f"copy/{worker}"]).exit_code == 0
    missing = run(main, ["restore", "copy/0", "new/workers/0"])
    assert missing.exit_code == 2
    assert "toymq: there is no directory new/workers: make it before new/workers/0" in missing.stderr
    Path("new/workers").mkdir(parents=True)
    for worker in range(2):
        done = run(main, ["restore", f"copy/{worker}", f"new/workers/{worker}"])
        assert done.exit_code == 0
        last = done.output.splitlines()[-1]
        assert last == "to serve it, when the parts of all N workers are restored: toymq workers new --set N"
    assert run(main, ["workers", "new", "--set", "2"]).output.startswith("new: 2 workers, 0 topics moved; ")
    assert run(main, ["workers", "new", "--set", "1"]).exit_code == 0
    assert sorted(path.name for path in Path("new/topics").iterdir()) == ["events", "orders"]


@pytest.mark.parametrize("name", ["amqp.json", "replica.json", "topics.restoring"])
def test_what_cannot_be_divided_is_told_by_both_commands_with_a_way_out(tmp_path: Path, name: str) -> None:
    """Found: `serve --workers` referred to `workers --set`, which named no remedy."""
    data = tmp_path / "data"
    (data / "topics/orders").mkdir(parents=True)
    for each in ("alerts.json", name):
        (data / each).write_text("{}")
    told = set()
    for command in (
        ["serve", "--workers", "2", "--data-dir", str(data), "--listen", "127.0.0.1:0"], ["workers", str(data), "--set", "2"],
    ):  # fmt: skip
        ended = CliRunner().invoke(main, command)
        assert ended.exit_code == 2
        told.add(ended.stderr.splitlines()[-1])
    (line,) = told
    assert line.startswith(f"toymq: {data} has {name}, and cannot be divided over workers: ")
    assert line.endswith(UNDIVIDABLE[name].format(data))
    assert not (data / "workers").exists()


def test_the_part_of_one_worker_is_neither_served_nor_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: a worker's directory was served as if it were whole: with empty copies of the other workers' partitions, to which
    messages were then published."""
    root, part = tmp_path / "data", tmp_path / "data/workers/1"
    root.mkdir()
    divide(RealFileSystem(), str(root), 2)
    (part / "topics/orders").mkdir()
    (tmp_path / "link").symlink_to(part)
    before = sorted(root.rglob("*"))
    monkeypatch.chdir(part)
    for path in (str(part), f"{part}/", str(tmp_path / "link"), ".", f"{part}/../1"):
        for command in (
            ["workers", path], ["workers", path, "--set", "2"], ["serve", "--data-dir", path, "--listen", "127.0.0.1:0"],
            ["serve", "--workers", "2", "--data-dir", path, "--listen", "127.0.0.1:0"],
        ):  # fmt: skip
            ended = CliRunner().invoke(main, command)
            assert (ended.exit_code, ended.stderr.splitlines()[-1]) == (
                2,
                f"toymq: {path} is the part of worker 1 of {root}: `toymq serve --workers 2 --data-dir {root}` serves all "
                f"parts, `toymq workers {root}` is for all",
            )
    assert sorted(root.rglob("*")) == before
    (root / "workers.json").rename(root / "kept.json")
    assert part_of(RealFileSystem(), str(part)) is None, "a directory of this name that belongs to no division"


def test_the_way_out_for_a_directory_that_had_amqp_keeps_what_was_declared(tmp_path: Path) -> None:
    data, mails = tmp_path / "data", tmp_path / "mails.toml"
    mails.write_text('[[exchange]]\nname = "mail"\ntype = "direct"\n\n[[queue]]\nname = "mails"\n')
    run = CliRunner().invoke
    data.mkdir()
    assert run(main, ["definitions", "import", str(mails), "--data-dir", str(data)]).exit_code == 0
    refused = run(main, ["workers", str(data), "--set", "2"]).stderr
    assert f"`toymq definitions export --data-dir {data} > FILE` keeps its exchanges, queues and bindings" in refused
    kept = run(main, ["definitions", "export", "--data-dir", str(data)]).stdout
    (data / "amqp.json").unlink()
    assert run(main, ["workers", str(data), "--set", "2"]).exit_code == 0
    assert len([*data.glob("workers/*/topics/mails")]) == 1, "its messages"
    assert run(main, ["workers", str(data), "--set", "1"]).exit_code == 0
    mails.write_text(kept)
    assert run(main, ["definitions", "import", str(mails), "--data-dir", str(data)]).exit_code == 0
    assert run(main, ["definitions", "export", "--data-dir", str(data)]).stdout == kept
    assert (data / "amqp.json").exists()
