"""A registry's Protobuf schema with its references: which are fetched, and which are refused before anything is written."""

from collections.abc import Iterator

import pytest

from tests.support.schema_registry import SchemaRegistry, schema_registry
from toymq_spark.values import protobuf_sources
from toymq_spark.values.protobuf_sources import MAIN, sources_of
from toymq_spark.values.registry import Reference, Registry, Schema


@pytest.fixture
def server() -> Iterator[SchemaRegistry]:
    with schema_registry() as running:
        yield running


def sources(server: SchemaRegistry, *references: tuple[str, str, int]) -> dict[str, str]:
    schema = Schema("PROTOBUF", "main", tuple(Reference(*reference) for reference in references))
    return sources_of(Registry(server.url, sleep=lambda seconds: None), schema)


def test_references_of_references_are_fetched_once(server: SchemaRegistry) -> None:
    server.add_protobuf("base", "base text")
    server.add_protobuf("left", "left text", ("a/base.proto", "base", 1))
    server.add_protobuf("right", "right text", ("a/base.proto", "base", 1))
    found = sources(server, ("left.proto", "left", 1), ("right.proto", "right", 1))
    assert found == {
        MAIN: "main", "left.proto": "left text", "a/base.proto": "base text", "right.proto": "right text",
    }  # fmt: skip
    assert server.requests == [f"/subjects/{subject}/versions/1" for subject in ("left", "base", "right")]


def test_what_protoc_brings_is_not_fetched(server: SchemaRegistry) -> None:
    assert sources(server, ("google/protobuf/timestamp.proto", "theirs", 1)) == {MAIN: "main"}
    assert server.requests == []


@pytest.mark.parametrize(
    "name",
    [
        "../x.proto", "a/../x.proto", "/etc/x.proto", "..", ".", "", "a//b", "a/", "./a", "a\\b", "a\0", "a\nb", "C:x", "~:x",
        "x" * 201, "\u00e9.proto", "a/..", "a/.",
    ],
)  # fmt: skip
def test_names_that_leave_the_directory_are_refused_before_they_are_fetched(server: SchemaRegistry, name: str) -> None:
    server.add_protobuf("s", "text")
    with pytest.raises(ValueError, match=r"^it refers to '.*', which is not a path within a directory$"):
        sources(server, (name, "s", 1))
    assert server.requests == []


def test_names_of_dots_that_do_not_leave_it(server: SchemaRegistry) -> None:
    server.add_protobuf("s", "text")
    names = ("..a/b.proto", ".hidden.proto", "a...b/c d+e@f.proto")
    assert sources(server, *((name, "s", 1) for name in names)).keys() == {MAIN, *names}


def test_cycles_are_refused(server: SchemaRegistry) -> None:
    """A cycle whose names differ each time is refused, too."""
    server.add_protobuf("a", "a", ("b.proto", "b", 1))
    server.add_protobuf("b", "b", ("a2.proto", "a", 1))
    with pytest.raises(ValueError, match=r"its reference a2\.proto refers to itself"):
        sources(server, ("a.proto", "a", 1))
    assert len(server.requests) == 2


def test_one_name_for_two_schemas_is_refused(server: SchemaRegistry) -> None:
    server.add_protobuf("a", "a")
    server.add_protobuf("a", "b")
    with pytest.raises(ValueError, match=r"two schemas by the name x\.proto"):
        sources(server, ("x.proto", "a", 1), ("x.proto", "a", 2))
    with pytest.raises(ValueError, match="two schemas by the name toymq-value"):
        sources(server, (MAIN, "a", 1))


def test_a_reference_that_is_missing_or_of_another_kind(server: SchemaRegistry) -> None:
    server.add("avro", "string")
    with pytest.raises(ValueError, match=r"its reference x\.proto is not in the registry: gone, version 3"):
        sources(server, ("x.proto", "gone", 3))
    with pytest.raises(ValueError, match=r"its reference x\.proto is a schema of type AVRO, not PROTOBUF"):
        sources(server, ("x.proto", "avro", 1))


def test_number_depth_and_size_are_bounded(server: SchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_sources, "FILES_MAX", 4)
    monkeypatch.setattr(protobuf_sources, "DEPTH_MAX", 2)
    monkeypatch.setattr(protobuf_sources, "CHARS_MAX", 30)
    server.add_protobuf("s", "text")
    three = tuple((f"{n}.proto", "s", 1) for n in range(3))
    assert len(sources(server, *three)) == 4
    with pytest.raises(ValueError, match="it refers to more than 4 schemas, or through more than 2"):
        sources(server, *three, ("3.proto", "s", 1))
    server.add_protobuf("two", "", ("s.proto", "s", 1))
    server.add_protobuf("one", "", ("two.proto", "two", 1))
    assert len(sources(server, ("two.proto", "two", 1))) == 3
    with pytest.raises(ValueError, match="or through more than 2"):
        sources(server, ("one.proto", "one", 1))
    server.add_protobuf("long", "x" * 27)
    with pytest.raises(ValueError, match="with its references it has more than 30 characters"):
        sources(server, ("long.proto", "long", 1))
