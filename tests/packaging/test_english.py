"""Words in the sources that hide the subject. Contract: style.md, "English"."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.packaging.links import ROOT

SOURCES = ("toymq_py", "clients", "chaos", "tests")
PERSONS = re.compile(r"\b(who|whom|nobody|somebody|everybody|anybody)\b", re.IGNORECASE)
IS_NO = re.compile(r"(?<!there)(?<!this token) is no \w")
"""As in "x is no stream": "is not a stream". There is no topic; a token is no longer in a file."""
SEAM = re.compile(r"[\"']\s+[a-z]*[\"']")
"""Between the lines of a text that takes several."""


def sources() -> Iterator[Path]:
    for folder in SOURCES:
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_pronouns_for_persons_are_rare() -> None:
    """A noun says which one is meant: a client, a peer, a worker, a user."""
    others = [path for path in sources() if path != Path(__file__)]
    found = [f"{path.name}: {word}" for path in others for word in PERSONS.findall(path.read_text())]
    assert len(found) < 20, found


def test_errors_say_what_is_not_a_thing() -> None:
    found = []
    for path in sources():
        source = path.read_text()
        if path.is_relative_to(ROOT / "tests") or not IS_NO.search(SEAM.sub("", source)):  # to parse all takes seconds
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Raise):
                constants = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
                texts = [each for each in constants if isinstance(each, str) and IS_NO.search(each)]
                found += [f"{path.name}:{node.lineno}: {text}" for text in texts]
    assert found == []
