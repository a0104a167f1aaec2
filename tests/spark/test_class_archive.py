"""The archive of Spark's classes, from which the tests' JVM starts."""

import subprocess
from pathlib import Path

import pytest

from tests.support import class_archive
from tests.support.requirements import require
from toymq_spark.session import build_session

pytestmark = require("java")


def java(*options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["java", *options, "-version"], capture_output=True, text=True, timeout=60, check=True)


def test_a_file_that_is_no_archive_stops_no_jvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "classes.jsa"
    monkeypatch.delenv(class_archive.KEEP, raising=False)
    assert "Archive" not in class_archive.options(place), "there is none, and none is kept"
    monkeypatch.setenv(class_archive.KEEP, "1")
    assert "ArchiveClassesAtExit" in class_archive.options(place)
    place.write_bytes(b"no archive")
    assert "ArchiveClassesAtExit" not in class_archive.options(place)
    assert java(*class_archive.options(place).split()).returncode == 0


@pytest.mark.spark_slow
def test_the_classes_of_a_session_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "classes.jsa"
    monkeypatch.setenv(class_archive.KEEP, "1")
    spark = build_session("classes", "local[1]", {"spark.driver.extraJavaOptions": class_archive.options(place)})
    with class_archive.kept(spark, place):
        assert spark.range(10).where("id > 5").count() == 4
        spark.stop()
    assert place.stat().st_size > 50_000_000, "what has been loaded"
    assert list(tmp_path.iterdir()) == [place]
    assert "sharing" in java(f"-XX:SharedArchiveFile={place}").stderr
