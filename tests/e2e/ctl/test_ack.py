"""``toymqctl ack``."""

from tests.support.broker_process import BrokerProcess
from tests.support.ctl import Ctl, ok, refused


def test_ack_by_number(ctl: Ctl, broker: BrokerProcess) -> None:
    ok(ctl("pub", "numbered", "a", "b", "c", "d"))
    with broker.connect() as wire:
        assert wire.ask(b"SUB numbered one\n") == b"OK 1"
        assert [wire.message()[:2] for _ in range(4)] == [(0, 1), (1, 1), (2, 1), (3, 1)]
        some = ctl("ack", "numbered", "one", "0,2-9")
        why = "in flight to one: never delivered to it, or acked already\n"
        assert (some.exit_code, some.stdout, some.stderr) == (0, "acked 3\n", f"toymqctl: 6 of 9 are not {why}")
        again = ctl("ack", "numbered", "one", "0", "--sync")
        assert (again.exit_code, again.stdout, again.stderr) == (0, "acked 0\n", f"toymqctl: 1 of 1 is not {why}")
    refused(ctl("ack", "numbered", "one", "5-3"), 2, "invalid message ids '5-3': write ascending")
    refused(ctl("ack", "numbered", "two", "1"), 1, "NO_SUCH_CONSUMER")
