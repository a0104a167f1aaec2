"""SUB: its reply, its limits, and no delivery before its OK. Contract: protocol.md, "SUB"."""

from collections.abc import Iterator

import pytest

from tests.support.session_rig import SessionRig
from toymq_py.protocol import Subscribe


@pytest.fixture
def session() -> Iterator[SessionRig]:
    with SessionRig(max_subscriptions=2) as session:
        yield session


def test_a_topic_is_made_and_delivers_behind_the_ok(session: SessionRig) -> None:
    session.rig.publish("t", b"x")
    session.handler.apply(Subscribe("t", "c"))
    assert session.write() == b"", "its consumer is not on stable storage"
    assert not session.deliveries.ready
    session.rig.loop.advance(0)
    assert session.write() == b"OK 1\n"
    assert session.deliveries.ready
    session.apply(Subscribe("new", "c"))
    assert session.write() == b"OK 1\n"
    assert "new" in session.rig.broker.topics


def test_a_pattern_is_answered_with_its_number_of_topics(session: SessionRig) -> None:
    for topic in ("a.x", "a.y", "b.x"):
        session.rig.publish(topic, b"x")
    session.apply(Subscribe("a.*", "c"))
    assert session.write() == b"OK 2\n"


@pytest.mark.parametrize(("first", "second"), [("a.x", "a.x"), ("a.*", "a.x"), ("a.x", "a.>"), ("a.*", "*.x")])
def test_subscriptions_do_not_overlap(session: SessionRig, first: str, second: str) -> None:
    session.apply(Subscribe(first, "c"))
    session.apply(Subscribe(second, "d"))
    refused = session.write().splitlines()[1]
    assert refused == b"ERR ALREADY_SUBSCRIBED this session is subscribed to %b already" % first.encode()


def test_a_session_has_a_limit_of_subscriptions(session: SessionRig) -> None:
    for topic in ("a", "b", "c"):
        session.apply(Subscribe(topic, "c"))
    assert session.write().splitlines()[2].split()[:2] == [b"ERR", b"TOO_MANY_SUBSCRIPTIONS"]
    assert set(session.deliveries.by_name) == {"a", "b"}
