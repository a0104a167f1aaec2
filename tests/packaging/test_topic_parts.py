"""Sessions and the gateway call a topic, and none of its parts (ADR 0073)."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = {"backlog", "committer", "delays", "log", "publisher", "redrive_consumer", "retention"}


def reached_into(source: str) -> list[str]:
    """Return the attributes that are parts of a topic, read from a name or attribute that ends with "topic", or from a call's
    result."""
    return [
        f"line {node.lineno}: topic.{node.attr}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr in PARTS
        if (isinstance(node.value, ast.Name) and node.value.id.endswith("topic"))
        or (isinstance(node.value, ast.Attribute) and node.value.attr.endswith("topic"))
        or isinstance(node.value, ast.Call)
    ]


@pytest.mark.parametrize("package", ["session", "gateway"])
def test_nothing_above_reaches_into_a_topic(package: str) -> None:
    found = {
        str(path.relative_to(ROOT)): places
        for path in (ROOT / "toymq_py" / package).rglob("*.py")
        if (places := reached_into(path.read_text()))
    }
    assert not found, "give Topic a method for it"


@pytest.mark.parametrize(
    "source",
    [
        "topic.log.x",
        "self._topic.publisher.publish()",
        "broker.topic('a').committer",
        "topic_or_new('a').log",
        "self._living('a').log",
    ],
)
def test_a_reach_into_a_topic_is_seen(source: str) -> None:
    assert reached_into(source)
