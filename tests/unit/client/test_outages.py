"""One warning per outage, however many connections a client has."""

import logging
from random import Random

import pytest

from toymq.options import Connected, Disconnected, Event, Options
from toymq.outages import Outages
from toymq.url import parse_urls
from toymq_py.errors import ConnectionLost


def test_an_outage_of_several_connections_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "toymq")
    (address,) = parse_urls("127.0.0.1:1")
    told: list[Event] = []
    outages = Outages(Options((address,), None, None, 1, 1, 0, 0.1, 1, True, told.append, None, None, Random(1)))
    main, pulling, leaving = object(), object(), object()
    for link in (main, pulling, leaving):
        outages.up(link, address)
    assert told == [Connected("127.0.0.1:1")], "the others belong to the same client"
    for link in (main, pulling, leaving):
        outages.down(link, address, ConnectionLost("gone"))
    assert told[1:] == [Disconnected("127.0.0.1:1", "gone")]
    outages.up(main, address)
    outages.up(pulling, address)
    assert len(told) == 2, "one is not back"
    outages.left(leaving)
    outages.left(leaving)
    assert told[2:] == [Connected("127.0.0.1:1")], "and is not expected any more"
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
