"""The load of the Python clients."""

import pytest

from toymq_bench.client_load import _check, items
from toymq_bench.errors import WrongReply


def test_each_message_has_a_key_of_its_own_or_none() -> None:
    keyed = list(items(3, 20, keyed=True))
    assert [key for key, _ in keyed] == [b"k0", b"k1", b"k2"]  # type: ignore[misc]
    plain = list(items(3, 20, keyed=False))
    assert [len(payload) for payload in plain] == [20] * 3
    assert {payload for _, payload in keyed} == set(plain)  # type: ignore[misc]


def test_a_message_out_of_order_is_no_measurement() -> None:
    _check(7, 7)
    with pytest.raises(WrongReply, match="id 8 was delivered, and 7 was the next"):
        _check(8, 7)
