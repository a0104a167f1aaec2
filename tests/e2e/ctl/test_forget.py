"""``toymqctl forget``."""

from tests.support.ctl import Ctl, ok, refused, values


def test_a_consumer_that_was_forgotten_starts_anew(ctl: Ctl) -> None:
    ok(ctl("pub", "again", "a", "b"))
    ok(ctl("sub", "again", "--consumer", "one", "--max", "2"))
    assert ok(ctl("forget", "again", "one")) == "forgot one of again\n"
    assert values(ctl("consumers", "again", "--json")) == []
    assert ok(ctl("sub", "again", "--consumer", "one", "--max", "2")) == "0\ta\n1\tb\n"
    text = "NO_SUCH_CONSUMER: again has no consumer two: it has one; `toymqctl consumers TOPIC` lists"
    refused(ctl("forget", "again", "two"), 1, text)
    refused(ctl("forget", "nowhere", "one"), 1, "NO_SUCH_TOPIC")
