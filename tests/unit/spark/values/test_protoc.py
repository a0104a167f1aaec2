"""The compiler of grpcio-tools: descriptors, errors for bad source, and where it does not run."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc_tools")
from google.protobuf import descriptor_pb2

from toymq_spark.errors import OptionError, ProtocFailed
from toymq_spark.values import protoc
from toymq_spark.values.protoc import compiled

USING = 'syntax = "proto3"; import "a/b.proto"; import "google/protobuf/timestamp.proto"; message M { B b = 1; int32 x = 2; }'


def names(*sources: tuple[str, str]) -> list[str]:
    return [file.name for file in descriptor_pb2.FileDescriptorSet.FromString(compiled(sources, sources[0][0])).file]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only directory for temporary files; no compiled schema is kept from other tests."""
    compiled.cache_clear()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_descriptors_of_a_file_and_of_its_imports(alone: Path) -> None:
    other = 'syntax = "proto3"; message B { int32 a = 1; }'
    assert names(("m.proto", USING), ("a/b.proto", other)) == ["a/b.proto", "google/protobuf/timestamp.proto", "m.proto"]
    assert list(alone.iterdir()) == [], "nothing is left"


def test_a_source_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source = ("once.proto", 'syntax = "proto3"; message Once { int32 a = 1; }')
    assert names(source) == ["once.proto"]
    monkeypatch.setattr(subprocess, "run", None)
    assert names(source) == ["once.proto"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("message", r"^protoc: m\.proto:1:.*Expected message name"),
        (USING, r"^protoc: a/b\.proto: File not found"),
        ('syntax = "proto3"; import "m.proto";', "protoc: .*recursively imports itself"),
        ('syntax = "proto3"; import "/etc/hostname"; message M {}', "protoc: /etc/hostname: File not found"),
        ('syntax = "proto3"; import "../errors"; message M {}', r"protoc: \.\./errors: "),
        ("message A {" * 100_000, "protoc: m.proto:1:"),
        ("\x00\ufffe", r"protoc: m\.proto:1:1: "),
    ],
)
def test_bad_source_ends_in_what_protoc_says(alone: Path, source: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as found:
        compiled((("m.proto", source),), "m.proto")
    assert str(alone) not in str(found.value)
    assert len(str(found.value)) < 5000
    assert list(alone.iterdir()) == []


def test_a_name_that_is_a_directory_of_another() -> None:
    with pytest.raises(ValueError, match="a name of its references is a directory of another one"):
        compiled((("m.proto", ""), ("a", ""), ("a/b", "")), "m.proto")
    with pytest.raises(ValueError, match="a name of its references is a directory of another one"):
        compiled((("m.proto", ""), ("a/b", ""), ("a", "")), "m.proto")


def test_a_source_is_no_module_of_python(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source's directory is not searched for Python modules, even if PYTHONPATH contains an empty entry."""
    monkeypatch.setenv("PYTHONPATH", ".")
    hostile = f"import pathlib; pathlib.Path({str(alone / 'ran')!r}).touch()"
    places = ("grpc_tools/__init__.py", "grpc_tools/protoc.py", "sitecustomize.py")
    assert names(("m.proto", 'syntax = "proto3"; message M {}'), *((name, hostile) for name in places)) == ["m.proto"]
    assert list(alone.iterdir()) == []


def test_where_it_is_not_installed_the_extra_is_named(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    with pytest.raises(OptionError, match=r"needs grpcio-tools: pip install 'toymq\[protobuf\]', on every node"):
        compiled((("m.proto", ""),), "m.proto")


def test_a_machine_that_does_not_run_it_makes_no_schema_bad(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protoc, "PROTOC_S", 0)
    with pytest.raises(ProtocFailed, match="timed out"):
        compiled((("m.proto", ""),), "m.proto")
    monkeypatch.setattr(sys, "executable", str(alone / "gone"))
    with pytest.raises(ProtocFailed, match=r"protoc does not run, or not to its end: .*No such file"):
        compiled((("m.proto", ""),), "m.proto")
