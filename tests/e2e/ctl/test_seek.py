"""``toymqctl seek``."""

from tests.support.ctl import Ctl, ok, refused, values


def test_seek_moves_a_consumer(ctl: Ctl) -> None:
    ok(ctl("pub", "moved", "a", "b", "c"))
    ok(ctl("sub", "moved", "--consumer", "one", "--max", "3"))
    assert ok(ctl("seek", "moved", "one", "1")) == "one goes on at 1\n"
    assert ok(ctl("sub", "moved", "--consumer", "one", "--timeout", "50ms")) == "1\tb\n2\tc\n"
    assert ok(ctl("seek", "moved", "one", "earliest")) == "one goes on at 0\n"
    assert ok(ctl("seek", "moved", "one", "latest")) == "one goes on at 3\n"
    refused(ctl("seek", "moved", "one", "4"), 1, "OUT_OF_RANGE: 0 is the first id of moved, 3 the next")


def test_seek_of_a_consumer_that_does_not_exist_needs_create(ctl: Ctl) -> None:
    ok(ctl("pub", "typo", "a", "b"))
    refused(ctl("seek", "typo", "workers", "latest"), 1, "typo has no consumer workers: it has none; --create makes it")
    assert ok(ctl("seek", "typo", "workers", "1", "--create")) == "workers goes on at 1\n"
    refused(ctl("seek", "typo", "worksers", "latest"), 1, "typo has no consumer worksers: it has workers; --create makes it")
    assert [row["consumer"] for row in values(ctl("consumers", "typo", "--json"))] == ["workers"]
    for n in range(6):
        ok(ctl("seek", "typo", f"w{n}", "latest", "--create"))
    refused(ctl("seek", "typo", "worksers", "latest"), 1, "it has w0, w1, w2, w3, w4 and 2 more; --create makes it")
    refused(ctl("seek", "nowhere", "one", "latest", "--create"), 1, "NO_SUCH_TOPIC")


def test_a_time_in_seconds_is_refused(ctl: Ctl) -> None:
    ok(ctl("pub", "timed", "a"))
    text = "@1795410933 is before 2001: write milliseconds, @1795410933000, or earliest"
    refused(ctl("seek", "timed", "one", "@1795410933", "--create"), 2, text)
    refused(ctl("sub", "timed", "--start", "@1795410933", "--timeout", "10ms"), 2, text)
    assert values(ctl("consumers", "timed", "--json")) == []
    assert ok(ctl("seek", "timed", "one", "@978307200000", "--create")) == "one goes on at 0\n"
    wrong = "invalid position 'soon': write earliest, latest, a message id or a time, @-5m"
    refused(ctl("seek", "timed", "one", "soon"), 2, wrong)
