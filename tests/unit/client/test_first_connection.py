"""How long the first connection is tried: once, for ``wait_s``, or for a failover."""

import logging

import pytest

from toymq.errors import ConnectFailed
from toymq.first_connection import FAILOVER_S, FirstConnection
from toymq.route import Route
from toymq.url import parse_urls
from toymq_py.errors import NotLeader

A, B = parse_urls(["a:1", "b:2"])
ERROR = ConnectFailed("a:1 does not lead its cluster, and knows no leader now; no broker at b:2: Connection refused")


def route_that_heard(*answers: BaseException) -> Route:
    route = Route([A, B])
    for answer in answers:
        route.begin()
        address = route.next()
        assert address is not None
        route.failed(address, answer)
    return route


def test_addresses_without_an_answer_are_tried_once() -> None:
    assert not FirstConnection(None, 100.0).goes_on(ERROR, route_that_heard(ConnectionRefusedError()), 100.0)


def test_a_failover_is_waited_for_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """The client also waits while the node that answered starts its broker, and answers nothing."""
    first, route = FirstConnection(None, 100.0), route_that_heard(NotLeader("-"), ConnectionRefusedError())
    with caplog.at_level(logging.WARNING, "toymq"):
        assert first.goes_on(ERROR, route, 101.0)
        assert first.goes_on(ERROR, route, 100.0 + FAILOVER_S - 0.001)
        assert not first.goes_on(ERROR, route, 100.0 + FAILOVER_S)
    assert [record.getMessage() for record in caplog.records] == [f"waiting up to 10 s for a node that leads: {ERROR}"]


@pytest.mark.parametrize("answer", [NotLeader("-"), ConnectionRefusedError()])
def test_a_wait_that_was_given_is_kept(answer: BaseException) -> None:
    route = route_that_heard(answer)
    assert not FirstConnection(0.0, 100.0).goes_on(ERROR, route, 100.0)
    longer = FirstConnection(20.0, 100.0)
    assert longer.goes_on(ERROR, route, 119.0)
    assert not longer.goes_on(ERROR, route, 120.0)
