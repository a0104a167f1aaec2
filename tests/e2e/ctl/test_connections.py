"""``toymqctl connections``."""

from tests.support.broker_process import BrokerProcess
from tests.support.ctl import Ctl, ok, refused, rows, values
from toymq import sync


def test_connections_are_listed_found_and_closed(web: Ctl, with_gateway: BrokerProcess) -> None:
    with sync.connect(f"toymq://127.0.0.1:{with_gateway.port}", name="biller") as client, client.sub("orders", "billing"):
        (found,) = values(web("connections", "--search", "biller", "--json"))
        assert (found["name"], found["protocol"]) == ("biller", "toymq")
        heads, row = rows(web("connections", "--search", "biller"))
        assert heads[:4] == ["connection", "name", "address", "token"]
        assert row[:2] + row[4:7] == [found["connection"], "biller", "orders", "as", "billing"]
        assert ok(web("connections", "close", str(found["connection"]))) == f"closed {found['connection']}\n"
    assert ok(web("connections", "--search", "biller")) == "no connection matches\n"
    gone = web("connections", "close", str(found["connection"]))
    refused(gone, 1, f"NO_SUCH_CONNECTION: connection {found['connection']} is not open; it may have ended")
    says = "BAD_ARGUMENT: invalid connection '7': write an id such as toymq-7; `toymqctl connections` or GET"
    refused(web("connections", "close", "7"), 1, says)


def test_more_than_are_shown_are_said(web: Ctl, with_gateway: BrokerProcess) -> None:
    url = f"toymq://127.0.0.1:{with_gateway.port}"
    with sync.connect(url, name="one"), sync.connect(url, name="two"):
        shown = web("connections", "--max", "1")
        assert (shown.exit_code, len(shown.stdout.splitlines())) == (0, 2)
        assert "are open: --max shows more, --search finds" in shown.stderr
