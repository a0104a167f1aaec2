"""Root and the data directory of another user, with real users. ADR 0242. See tests/unit/storage/test_directory_owner.py."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner

from tests.support.frames import encode_frame
from tests.support.requirements import require
from toymq_py.cli.main import main
from toymq_py.storage.segment import segment_name

pytestmark = require("root")

BROKER = 4711
DAMAGED = encode_frame(0, 1, b"", b"a")[:-1] + b"!" + encode_frame(1, 1, b"", b"b")
Tree = dict[str, tuple[int, bytes]]


def toymq(*arguments: str, uid: int = 0) -> tuple[int, str]:
    """Run `toymq` as a user: another than root in a child process, which may have no right to import further modules. Returns:
    exit code, all output."""
    if uid == 0:
        ended = CliRunner().invoke(main, list(arguments))
        return ended.exit_code, ended.output
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        ended = CliRunner().invoke(main, list(arguments))
        with os.fdopen(write, "w") as file:
            json.dump([ended.exit_code, f"{ended.output}{ended.exception!r}"], file)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        code, said = json.load(file)
    os.waitpid(child, 0)
    return code, said


def tree(root: Path) -> Tree:
    """Return owner and content of everything."""
    return {
        str(path.relative_to(root)): (path.stat().st_uid, path.read_bytes() if path.is_file() else b"")
        for path in sorted(root.rglob("*"))
    }


def owners(root: Path) -> set[int]:
    return {uid for uid, _ in tree(root).values()}


def give(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        os.chown(path, BROKER, BROKER)


@pytest.fixture
def place() -> Iterator[Path]:
    """Yield a directory that every user may enter, with a damaged data directory of root, ``roots``, a copy that belongs to the
    broker's user, ``own``, and a backup of it."""
    with TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        for topic in ("orders", "events"):
            (place / "roots/topics" / topic).mkdir(parents=True)
            (place / "roots/topics" / topic / segment_name(0)).write_bytes(DAMAGED)
        shutil.copytree(place / "roots", place / "own")
        toymq("backup", f"{place}/own", f"{place}/backup")
        (place / "empty").mkdir()
        (place / "bucket").mkdir()
        (place / "topics.toml").write_text('[[topic]]\nname = "new"\n')
        for each in ("own", "backup", "empty"):
            give(place / each)
        yield place


WRITERS = [
    ("repair", "own"),
    ("workers", "own", "--set", "2"),
    ("restore", "backup", "empty"),
    ("definitions", "import", "topics.toml", "--data-dir", "own"),
    ("definitions", "export", "--data-dir", "own"),
    ("tier", "check", "file:///bucket", "own", "--repair"),
]


@pytest.mark.parametrize("command", WRITERS, ids=" ".join)
def test_root_is_refused_and_changes_nothing(place: Path, command: tuple[str, ...]) -> None:
    """Found: `toymq repair` as root left files that the service's user could not read: every topic was degraded, publishes
    failed."""
    before = tree(place)
    there = {"own", "backup", "empty", "topics.toml"}
    arguments = [f"{place}/{each}" if each in there else each.replace("file://", f"file://{place}") for each in command]
    code, said = toymq(*arguments)
    assert code == 2, said
    named = " ".join(command[: 2 if command[0] == "tier" else 1])
    assert f"{place}/{'empty' if 'empty' in command else 'own'} belongs to user {BROKER}, whose broker cannot read" in said
    assert f"run it as its owner, `setpriv --reuid {BROKER} --clear-groups -- toymq {named} …`" in said
    assert tree(place) == before


def test_the_owner_may_and_so_may_root_in_its_own(place: Path) -> None:
    for data, uid in (("roots", 0), ("own", BROKER)):
        code, said = toymq("repair", f"{place}/{data}", uid=uid)
        assert (code, "orders: repaired, 1 record lost" in said) == (0, True), said
        assert toymq("verify", f"{place}/{data}", uid=uid)[0] == 0
        assert toymq("workers", f"{place}/{data}", "--set", "2", uid=uid)[0] == 0
        assert toymq("workers", f"{place}/{data}", "--set", "1", uid=uid)[0] == 0
        code, said = toymq("definitions", "export", "--data-dir", f"{place}/{data}", uid=uid)
        assert (code, 'name = "orders"' in said) == (0, True), said
        assert owners(place / data) == {uid}


def test_root_may_read_and_back_up_and_restore_into_a_new_directory(place: Path) -> None:
    before = tree(place / "own")
    assert toymq("dump", f"{place}/own", "orders")[0] == 0
    assert toymq("verify", f"{place}/own")[0] == 1, "the damage"
    assert toymq("backup", f"{place}/own", f"{place}/another")[0] == 1, "the damage"
    assert toymq("restore", f"{place}/backup", f"{place}/new")[0] == 1, "the damage"
    assert owners(place / "new") == {0}
    assert tree(place / "own") == before
