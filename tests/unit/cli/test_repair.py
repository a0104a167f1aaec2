"""The exit code of `toymq repair`. What it does: tests/unit/storage/offline/test_repair.py."""

from pathlib import Path

from click.testing import CliRunner

from tests.support.frames import encode_frame
from toymq_py.cli.repair import repair
from toymq_py.storage.segment import segment_name


def test_a_segment_that_stays_unreadable_is_named_with_exit_code_1(tmp_path: Path) -> None:
    """Found: repair ended with exit code 0, and `toymq verify` found the same damage as before."""
    topic = tmp_path / "d" / "topics" / "t"
    topic.mkdir(parents=True)
    (topic / segment_name(0)).write_bytes(encode_frame(0, 1, b"", b"x"))
    (topic / segment_name(1)).mkdir()
    done = CliRunner().invoke(repair, [str(tmp_path / "d")])
    assert done.exit_code == 1
    assert done.stdout.splitlines()[0] == "t: not repaired, 0 records lost, 0 files in quarantine"
    assert f"{topic / segment_name(1)} cannot be read: it stays" in done.stdout


def test_it_names_the_partitioned_topics_that_only_create_brings_back(tmp_path: Path) -> None:
    """Found: repair asked to create each partitioned topic again, but did not say that the remaining partitions were in the
    way."""
    data = tmp_path / "d"
    (data / "topics" / "orders#3").mkdir(parents=True)
    (data / "partitions.json").write_bytes(b"{")
    for said in ("partitions.json: repaired, 0 records lost, 1 file in quarantine", ""):
        done = CliRunner().invoke(repair, [str(data)])
        assert done.exit_code == 0
        assert done.stdout.partition("\n")[0] == said
        assert "CREATE orders partitions=N brings it back with what is in them" in done.stderr
