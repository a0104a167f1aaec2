"""``toymqctl inspect``."""

from tests.support.broker_process import BrokerProcess
from tests.support.ctl import Ctl, ok, refused, rows, values


def test_a_message_that_waits_shows_its_attempts_and_its_last_failure(web: Ctl, with_gateway: BrokerProcess) -> None:
    ok(web("pub", "cust", "a", "b"))
    assert ok(web("inspect", "cust", "0")) == "cust has no consumer\n"
    (held,) = values(web("pull", "cust", "booking", "--json"))
    ok(web("nack", "cust", "booking", str(held["id"]), "--delay", "1h", "--reason", "bad sku"))
    assert rows(web("inspect", "cust", "0"))[1] == ["booking", "scheduled", "1", "bad", "sku"]
    assert rows(web("inspect", "cust", "1"))[1] == ["booking", "ready", "0", "-"]
    (found,) = values(web("inspect", "cust", "0", "--json"))
    assert (found["id"], found["topic"]) == (0, "cust")
    refused(web("inspect", "cust", "2"), 1, "OUT_OF_RANGE")
    refused(web("inspect", "nowhere", "2"), 1, "NO_SUCH_TOPIC")


def test_a_dead_letter_says_where_it_is(web: Ctl) -> None:
    ok(web("pub", "gone", "a", "b"))
    values(web("pull", "gone", "booking", "--max", "2", "--json"))
    ok(web("ack", "gone", "booking", "0"))
    ok(web("nack", "gone", "booking", "1", "--dead"))
    assert rows(web("inspect", "gone", "0"))[1] == ["booking", "acked", "-", "-"]
    while (shown := rows(web("inspect", "gone", "1"))[1])[1] == "dying":
        pass  # the letter is stored behind the answer
    assert shown == ["booking", "dead", "letter", "gone.dlq", "0", "1", "rejected"]
