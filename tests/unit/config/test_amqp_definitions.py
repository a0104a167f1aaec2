"""Exchanges, queues and bindings in a file of definitions. Pure."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toymq_py.config.amqp_definitions import AmqpDefinition, Declare, by_key, plan, read
from toymq_py.config.definitions import Definitions, change_to_json, parse, to_json, to_toml
from toymq_py.errors import ConfigError

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
NAME = TEXT.filter(bool)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
)
ARGUMENTS = st.dictionaries(TEXT, VALUES, max_size=4)
DEFINITIONS = st.one_of(
    st.builds(
        lambda **values: AmqpDefinition("exchange", values),
        vhost=NAME, name=NAME, type=TEXT, auto_delete=st.booleans(), internal=st.booleans(), arguments=ARGUMENTS,
    ),
    st.builds(
        lambda **values: AmqpDefinition("queue", values),
        vhost=NAME, name=NAME, durable=st.booleans(), auto_delete=st.booleans(), arguments=ARGUMENTS,
    ),
    st.builds(
        lambda target, to_exchange, **values: AmqpDefinition(
            "binding", {**values, "queue": None if to_exchange else target, "exchange": target if to_exchange else None}
        ),
        vhost=NAME, source=TEXT, target=TEXT, to_exchange=st.booleans(), routing_key=TEXT, arguments=ARGUMENTS,
    ),
)  # fmt: skip


@given(st.lists(DEFINITIONS, max_size=5))
def test_what_is_written_is_read_again(some: list[AmqpDefinition]) -> None:
    wanted = by_key(some)
    for written in (to_toml(Definitions(amqp=wanted)), to_json(Definitions(amqp=wanted))):
        found = parse(written, "a file").amqp
        assert found == wanted
        assert plan(found, wanted) == []


FILE = """\
[[binding]]
source = "orders"
queue = "mails"
routing_key = "a.*"

[[queue]]
name = "mails"

[[exchange]]
name = "orders"
type = "topic"
"""


def test_what_is_needed_comes_first_and_what_is_there_is_left_alone() -> None:
    wanted = parse(FILE, "a file").amqp
    changes = plan(wanted, {})
    assert [str(change) for change in changes] == [
        "+ exchange orders type=topic", "+ queue mails", "+ binding orders -> queue mails a.*",
    ]  # fmt: skip
    assert change_to_json(changes[0]) == {"change": "declare", "exchange": {"name": "orders", "type": "topic"}}
    before = read("exchange", "", {"name": "orders", "type": "fanout", "arguments": {"a": 1}})
    (changed,) = plan(wanted, {**wanted, before.key: before})
    assert str(changed) == "~ exchange orders type=fanout -> topic, arguments={\"a\": 1} -> {}"
    assert changed == Declare(wanted["exchange", "/", "orders"], before)


@pytest.mark.parametrize(
    ("kind", "entry", "text"),
    [
        ("exchange", {"name": "e"}, "it needs a type"),
        ("exchange", {"name": "", "type": "direct"}, "it needs a name"),
        ("queue", {"name": "q", "exclusive": True}, "there is no key exclusive of queues, there are vhost, name"),
        ("queue", {"name": "q", "durable": "yes"}, "durable is true or false, not 'yes'"),
        ("queue", {"name": "q" * 256}, "name has at most 255 bytes"),
        ("queue", {"name": "q", "arguments": "{"}, "arguments are a table, or a text with a JSON object"),
        ("queue", {"name": "q", "arguments": "[]"}, r"arguments is a table, not '\[\]'"),
        ("binding", {"source": "e"}, "leads to a queue or to an exchange: name one of them"),
        ("binding", {"source": "e", "queue": "q", "exchange": "f"}, "name one of them"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(kind: str, entry: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=f"^here: .*{text}"):
        read(kind, "here", entry)


def test_arguments_are_what_json_has() -> None:
    with pytest.raises(ConfigError, match="arguments are texts, numbers, true, false, tables and arrays, not '1979-05-27'"):
        parse('[[queue]]\nname = "q"\narguments = {since = 1979-05-27}', "here")
    with pytest.raises(ConfigError, match="queue q stands twice"):
        parse('[[queue]]\nname = "q"\n[[queue]]\nname = "q"\ndurable = false', "here")
