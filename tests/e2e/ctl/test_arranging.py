"""`toymqctl` create, config, delete, purge, seek, forget, ack, nack."""

import json

from tests.support.broker_process import BrokerProcess
from tests.support.ctl import Ctl, ok, refused, values


def test_create_and_config_with_units(ctl: Ctl) -> None:
    words = ("visibility=2m", "retain_acked_for=1500ms", "dedupe_keys=7")
    for _ in range(2):
        assert ok(ctl("create", "arranged", *words)) == "arranged is there\n"
    assert values(ctl("config", "arranged", "--json")) == [{"visibility": 120_000, "retain_acked_for": 1500, "dedupe_keys": 7}]
    assert sorted(ok(ctl("config", "arranged")).split()) == sorted(words)
    assert ok(ctl("config", "arranged", "visibility=default", "dedupe_keys=default", "retain_acked_for=default")) == (
        "arranged has no settings of its own: the broker's defaults hold\n"
    )
    refused(ctl("create", "arranged", "visibility=1s"), 1, "EXISTS: arranged exists with other settings")
    refused(ctl("config", "arranged", "colour=red"), 1, "colour is not a topic setting; there are")
    refused(ctl("config", "arranged", "visibility=soon"), 2, "invalid duration 'soon': write 250ms")
    refused(ctl("config", "arranged", "visibility"), 2, "invalid setting 'visibility': write NAME=VALUE, for example")
    refused(ctl("config", "arranged", "ttl=1s", "ttl=2s"), 2, "ttl is given twice: give it once")
    refused(ctl("config", "nothing"), 1, "NO_SUCH_TOPIC")


def test_delete_asks(ctl: Ctl) -> None:
    ok(ctl("pub", "doomed", "a", "b"))
    kept = ctl("delete", "doomed", stdin="n\n")
    assert (kept.exit_code, kept.stdout) == (1, "")
    assert kept.stderr.endswith("delete doomed: 2 messages, 0 consumers? [y/N]: n\ntoymqctl: nothing was deleted\n")
    unanswered = ctl("delete", "doomed", stdin="")
    assert unanswered.exit_code == 2
    assert "nothing was deleted: use --yes to delete without asking" in unanswered.stderr
    assert ctl("delete", "doomed", stdin="y\n").stdout == "deleted doomed with 2 messages\n"
    ok(ctl("pub", "doomed", "c"))
    assert ok(ctl("delete", "doomed", "--yes")) == "deleted doomed with 1 messages\n"
    refused(ctl("delete", "doomed"), 1, "NO_SUCH_TOPIC")


def test_purge_asks(ctl: Ctl) -> None:
    ok(ctl("create", "full", "visibility=5s"))
    ok(ctl("pub", "full", "a", "b"))
    kept = ctl("purge", "full", stdin="n\n")
    assert (kept.exit_code, kept.stdout) == (1, "")
    assert kept.stderr.endswith("purge full: 2 messages, 0 consumers? [y/N]: n\ntoymqctl: nothing was purged\n")
    assert "nothing was purged: use --yes to purge without asking" in ctl("purge", "full", stdin="").stderr
    assert ctl("purge", "full", stdin="y\n").stdout == "purged full of 2 messages\n"
    ok(ctl("pub", "full", "c"))
    assert ok(ctl("purge", "full", "--yes")) == "purged full of 1 messages\n"
    assert "visibility=5s" in ok(ctl("config", "full")), "its settings stay"
    refused(ctl("purge", "nowhere", "--yes"), 1, "NO_SUCH_TOPIC")


def test_limits_are_written_as_people_say_them(ctl: Ctl) -> None:
    ok(ctl("create", "small", "backlog_max_messages=1", "backlog_max_bytes=64MiB", "retain_max_age=7d", "when_full=reject"))
    shown = ok(ctl("config", "small")).splitlines()
    assert shown == ["backlog_max_messages=1", "backlog_max_bytes=64MiB", "when_full=reject", "retain_max_age=7d"]
    assert json.loads(ok(ctl("config", "small", "--json"))) == {
        "backlog_max_messages": 1, "backlog_max_bytes": 64 << 20, "when_full": "reject", "retain_max_age": 604_800_000,
    }  # fmt: skip
    ok(ctl("pub", "small", "a"))
    refused(ctl("pub", "small", "b"), 1, "QUEUE_FULL")
    ok(ctl("config", "small", "when_full=drop-oldest"))
    ok(ctl("pub", "small", "b"))
    assert json.loads(ok(ctl("describe", "small", "--json")))["dropped_total"] == 1
    refused(ctl("config", "small", "when_full=drop"), 1, "write reject, drop-oldest or default")
    refused(ctl("config", "small", "colour=1"), 1, "colour is not a topic setting")


def test_seek_and_forget(ctl: Ctl) -> None:
    ok(ctl("pub", "moved", "a", "b", "c"))
    ok(ctl("sub", "moved", "--consumer", "one", "--max", "3"))
    assert ok(ctl("seek", "moved", "one", "1")) == "one goes on at 1\n"
    assert ok(ctl("sub", "moved", "--consumer", "one", "--timeout", "50ms")) == "1\tb\n2\tc\n"
    assert ok(ctl("seek", "moved", "one", "earliest")) == "one goes on at 0\n"
    assert ok(ctl("seek", "moved", "one", "latest")) == "one goes on at 3\n"
    refused(ctl("seek", "moved", "one", "4"), 1, "OUT_OF_RANGE: 0 is the first id of moved, 3 the next")
    assert ok(ctl("forget", "moved", "one")) == "forgot one of moved\n"
    refused(ctl("forget", "moved", "one"), 1, "NO_SUCH_CONSUMER: moved has no consumer one; `toymqctl consumers TOPIC` lists")


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
    refused(ctl("seek", "timed", "one", "soon"), 2, "a position is earliest, latest, a message id or @<unix-ms>")


def test_ack_and_nack_by_number(ctl: Ctl, broker: BrokerProcess) -> None:
    ok(ctl("pub", "numbered", "a", "b", "c", "d"))
    with broker.connect() as wire:
        assert wire.ask(b"SUB numbered one\n") == b"OK 1"
        assert [wire.message()[:2] for _ in range(4)] == [(0, 1), (1, 1), (2, 1), (3, 1)]
        assert ok(ctl("ack", "numbered", "one", "0,2-9")) == "acked 3\n"
        assert ok(ctl("ack", "numbered", "one", "0", "--sync")) == "acked 0\n", "once more is harmless"
        assert ok(ctl("nack", "numbered", "one", "1", "--delay", "0s")) == "gave back 1\n"
        assert wire.message() == (1, 2, b"b")
        assert ok(ctl("nack", "numbered", "one", "0")) == "gave back 0\n", "it is acked"
    refused(ctl("ack", "numbered", "one", "5-3"), 2, "invalid message ids '5-3': write ascending")
    refused(ctl("nack", "numbered", "one", "all"), 2, "message id")
    refused(ctl("ack", "numbered", "two", "1"), 1, "NO_SUCH_CONSUMER")
