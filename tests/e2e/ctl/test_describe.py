"""``toymqctl describe``."""

from tests.support.ctl import Ctl, ok, refused, rows, values


def test_describe_and_consumers(ctl: Ctl) -> None:
    ok(ctl("create", "seen", "visibility=90s"))
    ok(ctl("pub", "seen", "a", "b", "c"))
    ok(ctl("sub", "seen", "--consumer", "one", "--max", "2"))
    lines = ok(ctl("describe", "seen")).splitlines()
    assert lines[:4] == ["topic     seen", "state     ok", "messages  3", "ids       0 to 2"]
    assert "settings  visibility=90s" in lines
    head, row = (line.split() for line in lines[-2:])
    assert head[:3] == ["topic", "consumer", "last"]
    assert row[:7] == ["seen", "one", "1", "1", "1", "0", "0"]
    assert row[9:] == ["0", "-"]
    (consumer,) = values(ctl("consumers", "seen", "--json"))
    assert (consumer["topic"], consumer["consumer"], consumer["last_acked"], consumer["backlog"]) == ("seen", "one", 1, 1)
    assert [row[:2] for row in rows(ctl("consumers")) if row[0] == "seen"] == [["seen", "one"]]
    ok(ctl("pull", "seen", "one"))
    ok(ctl("nack", "seen", "one", "2", "--dead"))
    while not values(ctl("dlq", "list", "seen", "--json")):
        pass  # it is stored behind the answer
    ok(ctl("dlq", "redrive", "seen"))
    counted = [line for line in ok(ctl("describe", "seen")).splitlines() if line.startswith("dead")]
    assert counted == ["dead-lettered  1 message since the broker started"], "it does not say how many are there now"
    ok(ctl("create", "unread"))
    assert "ids       none, the next is 0" in ok(ctl("describe", "unread"))
    refused(ctl("describe", "nothing"), 1, "`toymqctl topics` lists")
