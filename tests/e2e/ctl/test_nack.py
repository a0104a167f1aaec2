"""``toymqctl nack``."""

from tests.support.broker_process import BrokerProcess
from tests.support.ctl import Ctl, ok, refused, values


def test_nack_by_number_whichever_session_has_it(ctl: Ctl, broker: BrokerProcess) -> None:
    ok(ctl("pub", "returned", "a", "b", "c"))
    with broker.connect() as wire:
        assert wire.ask(b"SUB returned one\n") == b"OK 1"
        assert [wire.message()[:2] for _ in range(3)] == [(0, 1), (1, 1), (2, 1)]
        ok(ctl("ack", "returned", "one", "0"))
        assert ok(ctl("nack", "returned", "one", "1", "--delay", "0s")) == "gave back 1\n"
        assert wire.message() == (1, 2, b"b")
        none = ctl("nack", "returned", "one", "0")
        said = "gave back 0\n", "toymqctl: 1 of 1 is not in flight to one\n"
        assert (none.exit_code, none.stdout, none.stderr) == (0, *said), "it is acked"
        some = ctl("nack", "returned", "one", "0-9", "--delay", "1h")
        said = "gave back 2\n", "toymqctl: 8 of 10 are not in flight to one\n"
        assert (some.exit_code, some.stdout, some.stderr) == (0, *said)
        assert [row["scheduled"] for row in values(ctl("consumers", "returned", "--json"))] == [2]


def test_what_waits_for_its_next_delivery_becomes_a_dead_letter(ctl: Ctl) -> None:
    ok(ctl("pub", "poison", "a", "b"))
    (held,) = values(ctl("pull", "poison", "w", "--json"))
    assert ok(ctl("nack", "poison", "w", "0", "--delay", "1h", "--lease", str(held["lease"]))) == "gave back 1\n"
    late = ctl("nack", "poison", "w", "0", "--dead", "--lease", str(held["lease"]))
    assert (late.exit_code, late.stdout) == (1, "gave up 0\n"), "this lease has ended"
    assert ok(ctl("nack", "poison", "w", "0", "--dead", "--reason", "bad sku")) == "gave up 1\n"
    (letter,) = values(ctl("pull", "poison.dlq", "reader", "--wait", "10s", "--json"))
    headers = letter["headers"]
    assert isinstance(headers, dict)
    assert (headers["toymq-reason"], headers["toymq-attempts"]) == ("bad sku", "1")
    none = ctl("nack", "poison", "w", "0-1", "--dead")
    said = "toymqctl: 2 of 2 are not in flight to w, nor given back by it\n"
    assert (none.exit_code, none.stdout, none.stderr) == (1, "gave up 0\n", said), "a dead letter, and one never delivered"


def test_a_lease_that_has_ended_is_not_that_of_the_next_worker(ctl: Ctl) -> None:
    ok(ctl("pub", "leased", "a"))
    (late,) = values(ctl("pull", "leased", "w", "--visibility", "1ms", "--json"))
    (held,) = values(ctl("pull", "leased", "w", "--wait", "10s", "--visibility", "1h", "--json"))
    assert (late["id"], held["id"]) == (0, 0)
    none = ctl("nack", "leased", "w", "0", "--lease", str(late["lease"]))
    said = f"toymqctl: 1 of 1 is not in flight to w under lease {late['lease']}\n"
    assert (none.exit_code, none.stdout, none.stderr) == (0, "gave back 0\n", said)
    assert ok(ctl("nack", "leased", "w", "0", "--lease", str(held["lease"]), "--delay", "0")) == "gave back 1\n"
    refused(ctl("nack", "leased", "w", "0", "--lease", "0"), 2, "--lease")


def test_what_cannot_be_given_back_is_named(ctl: Ctl) -> None:
    ok(ctl("pub", "kept", "a"))
    refused(ctl("nack", "kept", "one", "0"), 1, "NO_SUCH_CONSUMER")
    refused(ctl("nack", "kept", "one", "all"), 2, "message id")
    refused(ctl("nack", "kept", "one", "0", "--dead", "--delay", "5s"), 2, "--dead and --delay exclude each other")
