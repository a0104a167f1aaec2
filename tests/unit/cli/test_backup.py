"""What `toymq restore` prints about an incomplete backup. The rest: tests/e2e/test_backup.py."""

from pathlib import Path

from click.testing import CliRunner

from tests.support.frames import encode_frame
from toymq_py.cli.backup import backup, restore
from toymq_py.cli.main import main
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.offline.backup_directory import BackupMark, read_mark, write_mark
from toymq_py.storage.segment import segment_name

FS = RealFileSystem()


def data_directory(path: Path) -> Path:
    for topic in ("t", "u"):
        (path / "topics" / topic).mkdir(parents=True)
        (path / "topics" / topic / segment_name(0)).write_bytes(encode_frame(0, 1, b"", b"x"))
    return path


def test_what_a_backup_could_not_copy_is_said_when_it_is_restored(tmp_path: Path) -> None:
    data, to = data_directory(tmp_path / "d"), str(tmp_path / "b")
    (data / "topics" / "t" / "topic.json").mkdir()
    done = CliRunner().invoke(backup, [str(data), to])
    problem = "topic t: topic.json: it is a directory, and no file: the backup has none that are newer"
    assert (done.exit_code, [line for line in done.output.splitlines() if problem in line]) == (1, [f"toymq: {problem}"])
    assert (read_mark(FS, to).finished, read_mark(FS, to).problems) == (True, [problem])
    done = CliRunner().invoke(restore, [to, str(tmp_path / "back")])
    assert done.exit_code == 1
    assert f"toymq: the backup says: {problem}" in done.output
    assert "back is, but for what is named above, as it was at " in done.output
    (data / "topics" / "t" / "topic.json").rmdir()
    assert CliRunner().invoke(backup, [str(data), to]).exit_code == 0
    assert CliRunner().invoke(restore, [to, str(tmp_path / "back 2")]).exit_code == 0


def test_an_interrupted_backup_is_not_said_to_be_as_it_was(tmp_path: Path) -> None:
    """Found: a restore of it printed that the directory is as it was when the backup began, although messages were missing."""
    to = str(tmp_path / "b")
    assert CliRunner().invoke(backup, [str(data_directory(tmp_path / "d")), to]).exit_code == 0
    write_mark(FS, to, BackupMark(0, finished=False))
    done = CliRunner().invoke(restore, [to, str(tmp_path / "back"), "--unfinished"])
    assert done.exit_code == 0
    assert "is as it was" not in done.output
    told = "back has what was copied, and may lack what was acknowledged before 1970-01-01 00:00:00 UTC, when the backup"
    assert f"{told} {to} began" in done.output


def test_a_backup_of_what_is_not_there_says_nothing_of_copying(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["backup", f"{tmp_path}/none", f"{tmp_path}/b"])
    assert (done.exit_code, done.output) == (2, f"toymq: there is no directory {tmp_path}/none: check the path\n")
    assert not (tmp_path / "b").exists()
