"""What `toymq verify` prints. What it detects: tests/unit/storage/offline/test_verify.py."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.frames import encode_frame
from toymq_py.cli.verify import print_reports, verify
from toymq_py.storage import offsets
from toymq_py.storage.offline.verify import TopicReport
from toymq_py.storage.offsets import OffsetsState
from toymq_py.storage.segment import segment_name
from toymq_py.storage.segment_heads import MORE_MAY_BE_GONE


def test_an_empty_topic_has_no_ids(capsys: pytest.CaptureFixture[str]) -> None:
    """Found: the output was "ids 0 to -1"."""
    reports = [TopicReport("new"), TopicReport("made", segments=1, first_id=0, next_id=0), TopicReport("one", 1, 1, 9, 4, 5)]
    print_reports(reports, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "new: ok, 0 records in 0 segments, 0 bytes, empty",
        "made: ok, 0 records in 1 segment, 0 bytes, empty",
        "one: ok, 1 record in 1 segment, 9 bytes, id 4",
    ]


def test_what_is_no_file_is_named_with_exit_code_1_and_the_other_topics_are_judged(tmp_path: Path) -> None:
    for topic in ("t", "u"):
        path = tmp_path / "topics" / topic
        path.mkdir(parents=True)
        (path / segment_name(0)).write_bytes(encode_frame(0, 1, b"", b"x"))
    os.mkfifo(tmp_path / "topics" / "t" / "topic.json")
    done = CliRunner().invoke(verify, [str(tmp_path)])
    assert done.exit_code == 1
    first, found, second = done.stdout.splitlines()
    assert (first.split(",")[0], second.split(",")[0]) == ("t: DAMAGED", "u: ok")
    assert found == f"  damage: {tmp_path}/topics/t/topic.json: it is no regular file"


def test_what_is_gone_from_the_end_is_counted_as_the_least(tmp_path: Path) -> None:
    """Found: where 300 records were lost from the end the line said "1 lost", as if the number were exact."""
    path = tmp_path / "topics" / "t"
    path.mkdir(parents=True)
    (path / segment_name(0)).write_bytes(encode_frame(0, 1, b"", b"x"))
    (path / "offsets.json").write_bytes(offsets.encode(OffsetsState(0, 3)))
    first, found = CliRunner().invoke(verify, [str(tmp_path)]).stdout.splitlines()
    assert first.endswith(", ids 0 to 2, at least 2 lost")
    assert found.endswith("the offsets know of ids up to 2, the log ends at 0; " + MORE_MAY_BE_GONE)
