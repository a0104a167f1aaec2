"""The methods of AMQP as bytes. Contract: the specification, 1.4 to 1.9."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toymq_py.amqp import methods
from toymq_py.amqp.errors import COMMAND_INVALID, SYNTAX_ERROR, AmqpError
from toymq_py.amqp.fields import VALUES_MAX
from toymq_py.amqp.methods import FORMS

VALUES = {
    "bit": st.booleans(), "octet": st.integers(0, 255), "short": st.integers(0, 65535), "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**64 - 1), "shortstr": st.text(max_size=60), "longstr": st.binary(max_size=60),
    "table": st.dictionaries(st.text(max_size=5), st.integers(-9, 9) | st.text(max_size=5), max_size=3),
}  # fmt: skip


@given(st.data())
def test_each_method_is_read_as_it_was_written(data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(list(FORMS.values())))
    values: dict[str, Any] = {name: data.draw(VALUES[kind]) for kind, name in form.fields}
    found = methods.decode(methods.payload(form.name, **values))
    assert (found.name, found.index) == (form.name, form.index)
    assert {name: found[name] for _, name in form.fields} == values


def test_a_publish_that_goes_on_behind_its_fields_is_not_kept() -> None:
    """A thousand of 128 KiB each, of clients without a login too, stayed in memory for good."""
    before = methods._decode_publish.cache_info().currsize
    longest = methods.payload("basic.publish", exchange="e" * 255, routing_key="k" * 255)
    assert len(longest) == methods.PUBLISH_BYTES_MAX
    assert methods.decode(longest + bytes(1000)) == methods.decode(longest)
    assert methods._decode_publish.cache_info().currsize == before + 1


@given(st.data())
def test_a_method_that_is_cut_is_a_syntax_error_of_that_method(data: st.DataObject) -> None:
    form = data.draw(st.sampled_from([form for form in FORMS.values() if form.fields]))
    whole = methods.payload(form.name)
    with pytest.raises(AmqpError) as refused:
        methods.decode(whole[: data.draw(st.integers(4, len(whole) - 1))])
    assert (refused.value.code, refused.value.method) == (SYNTAX_ERROR, form.index)


def test_a_method_that_is_not_known_is_refused() -> None:
    with pytest.raises(AmqpError, match=r"method 60\.99 is not known") as refused:
        methods.decode(b"\0\x3c\0\x63")
    assert refused.value.code == COMMAND_INVALID


def test_bits_share_an_octet() -> None:
    """Compare with bytes written by hand as RabbitMQ's own client sends them: queue.declare of q, durable and auto_delete."""
    assert methods.payload("queue.declare", queue="q", durable=True, auto_delete=True) == b"\0\x32\0\n\0\0\x01q\x0a\0\0\0\0"


def test_a_method_that_arrives_has_a_bounded_number_of_values() -> None:
    payload = methods.encode(1, "queue.declare", queue="q", arguments={"a": [None] * (VALUES_MAX + 1)})[7:-1]
    with pytest.raises(AmqpError, match=f"tables have more than {VALUES_MAX} values in all"):
        methods.decode(payload)
