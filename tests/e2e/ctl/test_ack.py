"""``toymqctl ack``."""

from tests.support.broker_process import BrokerProcess
from tests.support.ctl import Ctl, ok, refused


def test_ack_by_number(ctl: Ctl, broker: BrokerProcess) -> None:
    ok(ctl("pub", "numbered", "a", "b", "c", "d"))
    with broker.connect() as wire:
        assert wire.ask(b"SUB numbered one\n") == b"OK 1"
        assert [wire.message()[:2] for _ in range(4)] == [(0, 1), (1, 1), (2, 1), (3, 1)]
        assert ok(ctl("ack", "numbered", "one", "0,2-9")) == "acked 3\n"
        assert ok(ctl("ack", "numbered", "one", "0", "--sync")) == "acked 0\n", "once more is harmless"
    refused(ctl("ack", "numbered", "one", "5-3"), 2, "invalid message ids '5-3': write ascending")
    refused(ctl("ack", "numbered", "two", "1"), 1, "NO_SUCH_CONSUMER")
