"""``toymqctl token create``. Contract: clients.md (the auth file)."""

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from toymq_py.auth.tokens import Authority, parse_grants, read_grants
from toymqctl import token as token_module
from toymqctl.cli import main as toymqctl


def create(*arguments: str) -> Result:
    return CliRunner().invoke(toymqctl, ["token", "create", *arguments])


def refused(result: Result, text: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    assert text in result.stderr
    assert result.stdout == ""


RIGHTS = ("--publish", "orders.*", "--publish", "jobs", "--subscribe", "orders.>")


def test_it_is_printed_with_its_lines_for_the_file() -> None:
    result = create("billing", *RIGHTS)
    assert result.exit_code == 0
    made, empty, lines = result.stdout.split("\n", 2)
    assert empty == ""
    grant = Authority(parse_grants(lines, "f")).find(made)
    assert grant is not None
    assert (grant.name, grant.publish.texts, grant.subscribe.texts, grant.admin) == (
        "billing", ("orders.*", "jobs"), ("orders.>",), False,
    )  # fmt: skip
    assert made not in lines
    assert len(made) >= 43, "256 bits of chance"
    assert create("billing").stdout.split("\n")[0] != made


def test_a_token_without_a_right_is_told(tmp_path: Path) -> None:
    note = "toymqctl: idle may do nothing: rights are --publish, --subscribe and --admin\n"
    assert create("idle").stderr == note
    assert create("idle", "--file", str(tmp_path / "auth.toml")).stderr.endswith("SIGHUP\n" + note)
    for rights in (["--admin", "--publish", ">"], ["--publish", "a"], ["--subscribe", "a"]):
        assert create("busy", *rights).stderr == ""


def test_an_admins_token_without_publish_and_subscribe_is_told() -> None:
    """The name "admin" sounds like all rights, so the command warns."""
    note = "toymqctl: ops may neither publish nor read messages: --admin does not include these\n"
    assert create("ops", "--admin").stderr == note


def test_files_grow_a_token_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "auth.toml"
    made = [create("a", *RIGHTS, "--file", str(path)), create("b", "--admin", "--file", str(path))]
    assert [result.exit_code for result in made] == [0, 0]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    authority = Authority(read_grants(str(path)))
    for result, name in zip(made, ("a", "b"), strict=True):
        (token,) = result.stdout.split()
        grant = authority.find(token)
        assert grant is not None
        assert grant.name == name
        assert token not in path.read_text()
        assert "SIGHUP" in result.stderr
    assert os.listdir(tmp_path) == ["auth.toml"]  # noqa: PTH208 (names)


def test_what_is_in_a_file_stays(tmp_path: Path) -> None:
    path, link = tmp_path / "real.toml", tmp_path / "auth.toml"
    path.write_text("# ours\n" + create("a").stdout.split("\n", 2)[2])
    path.chmod(0o640)
    link.symlink_to(path)
    before = path.read_text()
    assert create("b", "--file", str(link)).exit_code == 0
    assert path.read_text().startswith(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert link.is_symlink()
    assert [grant.name for grant in read_grants(str(link))] == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a/b"], "NAME 'a/b': token name must be"),
        (["a", "--publish", "ok", "--publish", "a b"], "--publish 'a b': topic name must be"),
        (["a", "--subscribe", "x*"], "--subscribe 'x*': a wildcard is a whole word"),
        (["a", "--publish", "x*"], "a wildcard is a whole word"),
        (["a", "--subscribe", "../x"], "topic name must be"),
        (["a", "--publish", "orders,jobs"], "--publish 'orders,jobs': topic name must be"),
        (["a", "--publish", "orders,jobs"], "; write --publish once for each (see"),
        (["a", "--file", ""], "--file '' names no file: leave it out, or name the auth file"),
        ([], "Missing argument 'NAME'"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], says: str) -> None:
    refused(create(*arguments), says)


@pytest.mark.parametrize(
    ("text", "says"),
    [("[[token]]\nname = 'a'\n", "already has a token a"), ("not toml", "invalid auth file"),
     ("token = 1", "invalid auth file"),
     ("token = [1]", "invalid auth file"), ("\xff", "is not UTF-8 at byte 0")],
)  # fmt: skip
def test_a_file_that_is_none_is_left_alone(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "auth.toml"
    path.write_bytes(text.encode("latin-1"))
    refused(create("a", "--file", str(path)), says)
    assert path.read_bytes() == text.encode("latin-1")
    assert os.listdir(tmp_path) == ["auth.toml"]  # noqa: PTH208 (names)


def test_a_directory_that_is_not_there_is_told_with_the_file_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "none" / "auth.toml"
    result = create("billing", "--admin", "--file", str(path))
    assert result.exit_code == 1
    assert result.stderr == f"toymqctl: {path}: No such file or directory\n", "without [Errno 2]"


def test_two_at_a_time_do_not_lose_one(tmp_path: Path) -> None:
    path = tmp_path / "auth.toml"
    (tmp_path / "auth.toml.new").touch()
    refused(create("a", "--file", str(path)), "auth.toml.new exists: another process is changing")
    assert not path.exists()


def test_a_disk_that_fails_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "auth.toml"
    assert create("a", "--file", str(path)).exit_code == 0
    before = path.read_bytes()

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(token_module.os, "fsync", fail)
    result = create("b", "--file", str(path))
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["auth.toml"]  # noqa: PTH208 (names)


@pytest.mark.parametrize(("text", "at"), [
    ("2999-01-31", "2999-01-31T00:00:00Z"), ("2999-01-31T12:00:00Z", "2999-01-31T12:00:00Z"),
    ("2999-01-31T12:00+02:00", "2999-01-31T10:00:00Z"), ("90d", None), ("1h", None),
])  # fmt: skip
def test_a_token_may_expire(text: str, at: str | None) -> None:
    result = create("a", "--expires", text)
    assert result.exit_code == 0, result.stderr
    (grant,) = parse_grants(result.stdout.split("\n", 2)[2], "f")
    assert grant.expires_ns is not None
    if at is not None:
        assert f"expires = {at}\n" in result.stdout
    else:
        left_s = grant.expires_ns / 1e9 - datetime.now(UTC).timestamp()
        assert abs(left_s - {"90d": 90 * 86_400, "1h": 3600}[text]) < 60


@pytest.mark.parametrize("text", ["yesterday", "2027-13-01", "2001-01-01", "0s", "99999d", "-5d", "", "2999-01-31T12:00",
                                  "0001-01-01T00:00+10:00"])  # fmt: skip
def test_a_time_that_is_none_or_over_is_refused(text: str) -> None:
    refused(create("a", "--expires", text), "--expires")


def test_a_time_from_now_needs_its_unit() -> None:
    """Found: 90 was taken for milliseconds, so the token had expired when it was read."""
    refused(create("a", "--expires", "90"), "--expires '90': write a time from now with its unit, 90d, at most ten years;")
