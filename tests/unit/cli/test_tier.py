"""``toymq tier check`` and ``toymq restore URL``: output and exit codes."""

import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.frames import encode_frame
from tests.support.tiers import unnamed
from toymq_py.cli.main import main
from toymq_py.clock import SystemClock
from toymq_py.config.topic_settings import TopicSettings
from toymq_py.storage import topic_settings
from toymq_py.storage.fs import RealFileSystem
from toymq_py.tier.bucket import open_bucket
from toymq_py.tier.deletions import encode
from toymq_py.tier.keys import Place, deleted_key, segment_key
from toymq_py.tier.uploads import TopicOnDisk, Uploads

PLACE = Place("t", "0123456789abcdef")


def toymq(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a directory with a sealed segment, and a record that is not sealed."""
    path = tmp_path / "d"
    topic = path / "topics" / "t"
    topic.mkdir(parents=True)
    for first_id, count in ((0, 5), (5, 2)):
        frames = [encode_frame(msg_id, 1, b"", b"x") for msg_id in range(first_id, first_id + count)]
        (topic / f"{first_id:020}.log").write_bytes(b"".join(frames))
    topic_settings.store(RealFileSystem(), str(topic), TopicSettings(), PLACE.incarnation)
    return path


def upload(data: Path, url: str) -> None:
    fs = RealFileSystem()
    topic = TopicOnDisk(PLACE, f"{data}/topics/t", 7)
    Uploads(fs, open_bucket(url, fs), SystemClock.wall_ns).round([topic], {PLACE})


def test_findings_are_told_mended_and_counted(data: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    (tmp_path / "bucket").mkdir()
    told = toymq("tier", "check", url, str(data))
    assert (told.exit_code, "is on the disk alone" in told.output) == (1, True)
    mended = toymq("tier", "check", url, str(data), "--repair", "--json")
    (line,) = mended.output.splitlines()
    assert json.loads(line).items() >= {"topic": "t", "incarnation": PLACE.incarnation, "mended": "uploaded"}.items()
    assert mended.exit_code == 0
    left = toymq("tier", "check", url, str(data)).output
    assert "has no state in the bucket" in left, "a broker stores it"
    assert left.endswith("1 finding, 0 mended\n")


@pytest.mark.parametrize("repair", [(), ("--repair",)])
def test_a_bucket_that_is_not_there_is_no_bucket_that_has_lost_everything(
    data: Path, tmp_path: Path, repair: tuple[str, ...]
) -> None:
    """Found by a user: with a misspelt URL each segment was reported lost, and --repair uploaded all to a new directory of that
    name."""
    told = toymq("tier", "check", f"file://{tmp_path}/bukket", str(data), *repair)
    assert (told.exit_code, "bukket is gone: mount its file system, or make it" in told.output) == (2, True)
    assert not (tmp_path / "bukket").exists()


def test_a_restore_names_what_was_not_sealed(data: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    upload(data, url)
    told = toymq("restore", url, f"{tmp_path}/again")
    assert told.exit_code == 1
    assert "topic t: records 5 to 6 were not sealed, or are gone from the bucket" in told.output
    assert re.search(r"topic t: what got OK after 2\S+ \S+ UTC, its newest state, and was not sealed may be lost", told.stderr)
    assert "t: 1 segment, consumers and settings as of " in told.output
    accept, serve = told.stdout.splitlines()[-2:]
    assert accept == f"to accept the loss, or /readyz is 503: toymq repair {tmp_path}/again"
    assert serve == f"to serve it: toymq serve --data-dir {tmp_path}/again --tier {url}"
    assert toymq("restore", url, f"{tmp_path}/again").exit_code != 0, "nothing is overwritten"
    assert "--unfinished is for a backup" in toymq("restore", "--unfinished", url, f"{tmp_path}/other").output


def test_a_restore_names_the_partitioned_topics_that_only_create_brings_back(tmp_path: Path) -> None:
    """The bucket has a topic for each partition, and nowhere their number."""
    fs, url, incarnation = RealFileSystem(), f"file://{tmp_path}/bucket", PLACE.incarnation
    topics = []
    for name in ("orders#0", "orders#2"):
        topic = tmp_path / "d" / "topics" / name
        topic.mkdir(parents=True)
        for first_id in (0, 1):
            (topic / f"{first_id:020}.log").write_bytes(encode_frame(first_id, 1, b"", b"x"))
        topic_settings.store(fs, str(topic), TopicSettings(), incarnation)
        topics.append(TopicOnDisk(Place(name, incarnation), str(topic), 2))
    Uploads(fs, open_bucket(url, fs), SystemClock.wall_ns).round(topics, {topic.place for topic in topics})
    told = toymq("restore", url, f"{tmp_path}/again")
    assert "toymq: partitions of orders are here, up to orders#2, and partitions.json does not know the topic" in told.stderr
    assert "CREATE orders partitions=N brings it back" in told.stderr


def test_a_restore_says_how_many_seals_name_no_topic(data: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    upload(data, url)
    (seal,) = (tmp_path / "bucket").rglob("*.seal")
    assert "without a seal that names the topic" not in toymq("restore", url, f"{tmp_path}/again").output
    seal.write_bytes(unnamed(seal.read_bytes()))
    told = toymq("restore", url, f"{tmp_path}/other").output
    assert "topic t: 1 segment without a seal that names the topic: that nothing was exchanged is not known" in told


@pytest.mark.parametrize("at", [(), ("--at", "2020-11-28")])
def test_a_pipe_among_the_objects_is_named_and_ends_no_restore(data: Path, tmp_path: Path, at: tuple[str, ...]) -> None:
    url = f"file://{tmp_path}/bucket"
    upload(data, url)
    key = segment_key(PLACE, 0)
    (tmp_path / "bucket" / key).unlink()
    os.mkfifo(tmp_path / "bucket" / key)
    told = toymq("restore", url, f"{tmp_path}/again", *at)
    assert told.exit_code == 1
    assert f"topic t: {key} is damaged: it has 0 bytes, and its seal says " in told.output
    assert (tmp_path / "again" / "topics" / "t").is_dir()


def test_what_was_deleted_is_named_and_a_stray_deletion_deletes_nothing(data: Path, tmp_path: Path) -> None:
    url, gone = f"file://{tmp_path}/bucket", Place("gone", PLACE.incarnation)
    upload(data, url)
    bucket = open_bucket(url, RealFileSystem())
    bucket.put(deleted_key(gone), encode(gone, 1_700_000_000_000_000_000))
    bucket.put(deleted_key(PLACE), b"")
    told = toymq("restore", url, f"{tmp_path}/again")
    of = f"topic gone, incarnation {PLACE.incarnation}"
    assert f"{of}, is not restored: it was deleted at 2023-11-14 22:13:20 UTC" in told.output
    assert f"topic t: {deleted_key(PLACE)} cannot be read: it has 0 bytes" in told.output
    assert "t: 1 segment, " in told.output


def test_a_restore_to_a_time_and_what_it_refuses(data: Path, tmp_path: Path) -> None:
    """The records are from 1 ns after the epoch, and the state is from now."""
    url, to = f"file://{tmp_path}/bucket", f"{tmp_path}/then"
    upload(data, url)
    future = toymq("restore", url, to, "--at", "2999-01-01")
    assert "2999-01-01 is in the future, now is " in future.output
    assert "write 2026-11-28T09:30:00Z" in toymq("restore", url, to, "--at", "noon").output
    assert "--at is for the bucket of a broker" in toymq("restore", str(data), to, "--at", "2026-11-28").output
    told = toymq("restore", url, to, "--at", "2020-11-28T01:00:00+01:00")
    assert told.exit_code == 1
    assert "topic t: the bucket has no state of then: it gets no consumers" in told.output
    assert "may be lost" not in told.output, "a state that is newer knows what was handed out then"
    assert re.search(r"^t: 1 segment; the next id is 10\d{6}$", told.output, re.MULTILINE)
    assert f"{to} is as it was at 2020-11-28 00:00:00 UTC" in told.output


def test_a_bucket_is_listed(data: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    away = toymq("tier", "list", url)
    assert (away.exit_code, "the bucket" in away.output) == (2, True)
    (tmp_path / "bucket").mkdir()
    assert "the bucket is empty" in toymq("tier", "list", url).output
    assert toymq("tier", "check", url, str(data), "--repair").exit_code == 0
    assert toymq("tier", "list", url).output == "t: records 0 to 4 in 1 segment, no state\n"
    upload(data, url)
    told = json.loads(toymq("tier", "list", url, "--json").output)
    known = {"topic": "t", "incarnation": PLACE.incarnation, "first_id": 0, "next_id": 5, "segments": 1}
    assert told.items() >= known.items()
    assert "in 1 segment, consumers and settings as of 20" in toymq("tier", "list", url).output
