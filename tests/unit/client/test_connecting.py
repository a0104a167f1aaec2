"""``toymq.connect``: what it checks and keeps before anything is connected. Contract: clients.md."""

import inspect
from random import Random

import pytest

import toymq
from toymq import sync
from toymq.connecting import connect
from toymq.errors import ConfigError
from toymq.options import Options
from toymq.url import parse_urls


def test_both_clients_take_the_same_arguments() -> None:
    asyncio_one, blocking_one = inspect.signature(toymq.connect), inspect.signature(sync.connect)
    assert list(asyncio_one.parameters.values()) == list(blocking_one.parameters.values())


def test_what_is_given_is_kept_and_nothing_is_connected() -> None:
    """The test runs without an event loop and without a broker."""
    random = Random(1)
    client = connect("toymq://h:1", token="t", name="n", timeout_s="10s", wait_s=0, idempotent=False, random=random)
    assert client._options == Options(
        parse_urls("toymq://h:1", "t"), "n", None, 10.0, 5.0, 0.0, 0.05, 5.0, False, None, None, None, random, True
    )
    assert not client.connected
    assert toymq.connect is connect


def test_wrong_arguments_are_refused_before_anything_is_connected() -> None:
    with pytest.raises(ConfigError, match="http"):
        connect("http://h:1")
    with pytest.raises(TypeError, match="timeout_s"):
        connect(timeout=3)  # type: ignore[call-arg]
