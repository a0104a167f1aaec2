"""``toymqctl connections``."""

from tests.support.broker_process import BrokerProcess
from tests.support.ctl import Ctl, ok, on_a_terminal, refused, rows, values
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
    with (
        sync.connect(f"toymq://127.0.0.1:{with_gateway.port}", name="biller") as client,
        client.sub("orders", "one", mode="single"), client.sub("later.*", "one", mode="single"),
    ):  # fmt: skip
        row = " ".join(rows(web("connections", "--search", "biller"))[1])
    assert "orders as one (active in orders), later.* as one (not active)" in row
    gone = web("connections", "close", str(found["connection"]))
    why = "is not open: it may have ended; `toymqctl connections` lists"
    refused(gone, 1, f"NO_SUCH_CONNECTION: connection {found['connection']} {why}")
    says = "BAD_ARGUMENT: invalid connection '7': write an id such as toymq-7: `toymqctl connections` lists them\n"
    refused(web("connections", "close", "7"), 1, says)
    ok(web("create", "kept"))
    refused(web("connections", "close", "../topics/kept"), 1, "BAD_NAME: connection name must be 1 to ")
    assert ok(web("describe", "kept"))


def test_a_line_of_a_narrow_terminal_has_the_id_and_the_address(web: Ctl, with_gateway: BrokerProcess) -> None:
    """Found by a new user: at 80 columns every id was cut, so none could be given to `close`."""
    url = f"toymq://127.0.0.1:{with_gateway.port}"
    with sync.connect(url, name="a-worker-of-billing-on-host-17") as client, client.sub("orders.created.europe", "billing"):
        (found,) = values(web("connections", "--search", "billing", "--json"))
        shown = on_a_terminal(with_gateway, "connections", "--search", "billing")
        heads, row, note = shown.splitlines()
        assert max(map(len, (heads, row, note))) <= 80, shown
        assert heads.split() == ["connection", "name", "address", "subscriptions", "inflight", "since"]
        assert row.startswith(f"{found['connection']} ")
        assert f"  {found['address']}  " in row
        assert "orders.created" in row
        assert note == "the terminal is narrow: --json has token, received, sent, too"


def test_more_than_are_shown_are_said(web: Ctl, with_gateway: BrokerProcess) -> None:
    url = f"toymq://127.0.0.1:{with_gateway.port}"
    with sync.connect(url, name="one"), sync.connect(url, name="two"):
        shown = web("connections", "--max", "1")
        assert (shown.exit_code, len(shown.stdout.splitlines())) == (0, 2)
        assert "are open: --max shows more, --search finds" in shown.stderr
