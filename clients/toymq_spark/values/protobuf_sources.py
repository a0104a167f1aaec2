"""Loads a registry's Protobuf schema with all its imports, as source texts by name. Does not know the compiler.

Names, subjects and versions are chosen by anyone who may register a schema, so every count and size has a limit.
"""

import re

from toymq_spark.values.registry import Registry, Schema

MAIN = "toymq-value.proto"
"""Name of the schema itself, which has none in a registry."""
FILES_MAX = 200
DEPTH_MAX = 32
CHARS_MAX = 4 << 20
NAME_CHARS_MAX = 200
_PART = r"(?!\.\.?(?:/|\Z))[\w.+@ -]+"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*", re.ASCII)
_COMPILERS_OWN = "google/protobuf/"
"""Protoc brings these files."""


def sources_of(registry: Registry, schema: Schema) -> dict[str, str]:
    """Return the source texts of a schema and of its imports, by name. Raises: ValueError when a reference cannot be followed,
    RegistryFailed."""
    found = {MAIN: schema.text}
    places: dict[str, tuple[str, int]] = {}

    def add(using: Schema, within: tuple[tuple[str, int], ...]) -> None:
        for reference in using.references:
            name, place = reference.name, (reference.subject, reference.version)
            if len(name) > NAME_CHARS_MAX or not _NAME.fullmatch(name):
                raise ValueError(f"it refers to {name[:NAME_CHARS_MAX]!r}, which is not a path within a directory")
            if name.startswith(_COMPILERS_OWN):
                continue
            if place in within:
                raise ValueError(f"its reference {name} refers to itself")
            if name == MAIN or places.setdefault(name, place) != place:
                raise ValueError(f"it refers to two schemas by the name {name}")
            if name in found:
                continue
            if len(found) >= FILES_MAX or len(within) >= DEPTH_MAX:
                raise ValueError(f"it refers to more than {FILES_MAX} schemas, or through more than {DEPTH_MAX}")
            used = registry.referenced(reference)
            if used is None:
                raise ValueError(f"its reference {name} is not in the registry: {place[0]}, version {place[1]}")
            if used.kind != schema.kind:
                raise ValueError(f"its reference {name} is a schema of type {used.kind}, not {schema.kind}")
            found[name] = used.text
            if sum(map(len, found.values())) > CHARS_MAX:
                raise ValueError(f"with its references it has more than {CHARS_MAX} characters")
            add(used, (*within, place))

    add(schema, ())
    return found
