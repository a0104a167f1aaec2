"""``toymqctl dlq``."""

import re
from contextlib import suppress

from tests.support.broker_process import TIMEOUT_S, BrokerProcess
from tests.support.ctl import Ctl, ok, on_a_terminal, refused, rows, values
from toymq import sync


def test_dead_letters_are_listed_shown_and_sent_back(ctl: Ctl, broker: BrokerProcess) -> None:
    assert ok(ctl("dlq", "list")) == "no dead letters\n"
    for n in range(3):
        ok(ctl("pub", "jobs", f"job {n}", "--key", f"k{n}", "--header", "Kind: job"))
    with sync.connect(f"127.0.0.1:{broker.port}") as client, client.sub("jobs", "w") as messages:
        for _ in range(3):
            messages.next(TIMEOUT_S)
        assert ok(ctl("nack", "jobs", "w", "0-1", "--dead", "--reason", "poison")) == "gave up 2\n"
        assert ok(ctl("nack", "jobs", "w", "2", "--dead")) == "gave up 1\n"
        with client.sub("jobs.dlq", "audit") as letters:
            for _ in range(3):
                letters.next(TIMEOUT_S)
    refused(ctl("nack", "jobs", "w", "0", "--dead", "--delay", "5s"), 2, "--dead and --delay exclude each other")
    first, *others = values(ctl("dlq", "list", "jobs", "--json"))
    assert int(str(first.pop("ts_ns"))) > 0
    failed_at = int(str(first["failed_at_ms"]))
    assert first == {
        "topic": "jobs.dlq", "id": 0, "origin_topic": "jobs", "origin_id": 0, "key": "k0", "consumer": "w", "attempts": 1,
        "reason": "poison", "error": None, "failed_at_ms": failed_at, "redrives": 0, "settled": False, "bytes": 5,
    }  # fmt: skip
    assert [(row["id"], row["reason"]) for row in others] == [(1, "poison"), (2, "rejected")]
    table = rows(ctl("dlq", "list", "jobs.dlq"))
    assert table[0] == ["id", "died", "origin", "consumer", "attempts", "reason", "error", "key", "size"]
    assert table[1][-7:] == ["0", "w", "1", "poison", "-", "k0", "5B"]
    shown = ok(ctl("dlq", "show", "jobs", "1"))
    assert "toymq-origin-key" in shown
    assert shown.endswith("\n\njob 1\n")
    assert ok(ctl("dlq", "show", "jobs", "1", "--format", "raw")) == "job 1\n"
    assert values(ctl("dlq", "show", "jobs", "1", "--json"))[0]["payload"] == "job 1"
    refused(ctl("dlq", "show", "jobs", "7"), 1, "OUT_OF_RANGE")
    refused(ctl("dlq", "show", "jobs", "abc"), 2, "Invalid value for 'ID': invalid message id 'abc': write a whole")
    refused(ctl("dlq", "show", "jobs", "3"), 1, "jobs.dlq has no dead letter 3")
    assert ok(ctl("dlq", "redrive", "jobs", "1")) == "sent back 1\n"
    assert [row["id"] for row in values(ctl("dlq", "list", "jobs", "--json"))] == [0, 2]
    assert [row["settled"] for row in values(ctl("dlq", "list", "jobs", "--all", "--json"))] == [False, True, False]
    assert len(rows(ctl("dlq", "list", "jobs", "-n", "1"))) == 2
    assert "poison" in on_a_terminal(broker, "dlq", "list", "jobs", "--group")
    assert rows(ctl("dlq", "list")) == [["topic", "letters", "settled"], ["jobs.dlq", "2", "1"]]
    assert ok(ctl("dlq", "redrive", "jobs.dlq", "--max", "1")) == "sent back 1\n"
    assert ok(ctl("dlq", "redrive", "jobs")) == "sent back 1\n"
    assert ok(ctl("dlq", "redrive", "jobs")) == "sent back 0\n"
    assert ok(ctl("dlq", "list", "jobs")) == "no dead letters\n"
    assert ok(ctl("dlq", "list")) == "no dead letters\n", "all of them went back"
    assert rows(ctl("dlq", "list", "--all"))[1] == ["jobs.dlq", "0", "3"]
    ok(ctl("forget", "jobs.dlq", "audit"))
    assert rows(ctl("topics", "jobs.dlq"))[1][4] == "0", "what went back is no backlog"
    refused(ctl("dlq", "list", "nothing"), 1, "NO_SUCH_TOPIC")
    refused(ctl("dlq", "show", "nothing", "0"), 1, "NO_SUCH_TOPIC: there is no topic nothing")
    ok(ctl("pub", "healthy", "x"))
    refused(ctl("dlq", "show", "healthy", "0"), 1, "healthy has no dead letters")
    refused(ctl("dlq", "redrive", "nothing"), 1, "NO_SUCH_TOPIC")
    assert [row["payload"] for row in values(ctl("tail", "jobs", "--from", "3", "--json"))] == ["job 1", "job 0", "job 2"]


def test_a_topic_without_dead_letters_is_no_error(ctl: Ctl) -> None:
    ok(ctl("pub", "healthy", "a"))
    for name in ("healthy", "healthy.dlq"):
        assert ok(ctl("dlq", "list", name)) == "no dead letters\n"
        assert ok(ctl("dlq", "list", name, "--json")) == ""
        assert ok(ctl("dlq", "redrive", name)) == "sent back 0: healthy has no dead letters\n"
    refused(ctl("dlq", "redrive", "healthy", "3"), 1, "healthy.dlq has no dead letter 3")
    refused(ctl("dlq", "list", "nothing"), 1, "there is no topic nothing")
    refused(ctl("dlq", "redrive", "nothing.dlq"), 1, "there is no topic nothing")


def test_redrive_of_an_id_that_is_no_letter_is_refused(ctl: Ctl) -> None:
    ok(ctl("pub", "bills", "a"))
    ok(ctl("pull", "bills", "w", "--visibility", "1h"))
    ok(ctl("nack", "bills", "w", "0", "--dead"))
    ok(ctl("pull", "bills.dlq", "audit", "--wait", "5s"))  # it is stored
    refused(ctl("dlq", "redrive", "bills", "77"), 1, "bills.dlq has no dead letter 77: `toymqctl dlq list")
    refused(ctl("dlq", "redrive", "bills", "5-9,77"), 1, "bills.dlq has no dead letter 5-9,77")
    assert ok(ctl("dlq", "redrive", "bills", "0-9")) == "sent back 1\n"
    assert ok(ctl("dlq", "redrive", "bills", "0")) == "sent back 0: they went back or were discarded before\n"

HOSTILE = "no template:\n\x1b[31m\x1b]0;mine\x07 \u202ex.html"


def test_dead_letters_say_why_and_those_that_failed_alike_are_counted(ctl: Ctl, broker: BrokerProcess) -> None:
    def fail(error: Exception) -> None:
        with suppress(type(error)), messages.next(TIMEOUT_S).process(dead_on=Exception):
            raise error

    with sync.connect(f"127.0.0.1:{broker.port}") as client:
        for n in range(5):
            client.pub("failing", b"%d" % n)
        with client.sub("failing", "w") as messages, client.sub("failing.dlq", "audit") as letters:
            for n in range(3):
                fail(ValueError(f"{HOSTILE} {n}"))
            fail(KeyError("x"))
            messages.next(TIMEOUT_S).dead_letter("two words")
            found = [letters.next(TIMEOUT_S) for _ in range(5)]
    assert [letter.headers.get("toymq-origin-key") for letter in found] == [None] * 5
    listed = ok(ctl("dlq", "list", "failing"))
    assert "rejected   ValueError: no template:  [31m ]0;mine   x.html 0" in listed
    assert "KeyError: 'x'" in listed
    assert "two words" in listed
    assert not any(word in listed for word in ("~seq~", "\x1b", "\x07", "\u202e"))
    head, first_line, *_, left_out = on_a_terminal(broker, "dlq", "list", "failing").splitlines()
    assert head.split() == ["id", "died", "consumer", "reason", "error"], "80 columns are for the time and the error"
    assert re.fullmatch(r" 0  \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ  w +rejected +ValueError: no template:.{9,}", first_line)
    assert left_out == "the terminal is narrow: --json has origin, attempts, key, size, too"
    groups = values(ctl("dlq", "list", "failing", "--group", "--json"))
    named = ("count", "reason", "error_type", "first_id", "last_id")
    assert [tuple(group[name] for name in named) for group in groups] == [
        (3, "rejected", "ValueError", 0, 2), (1, "rejected", "KeyError", 3, 3), (1, "two words", None, 4, 4),
    ]  # fmt: skip
    assert str(groups[0]["last_error"]).endswith("x.html 2")
    table = rows(ctl("dlq", "list", "failing", "--group", "-n", "1"))
    assert table[0] == ["letters", "first", "last", "died", "consumer", "reason", "last", "error"]
    assert (len(table), table[1][:3]) == (2, ["3", "0", "2"])
    refused(ctl("dlq", "list", "--group"), 2, "--group needs a TOPIC")
    shown = ok(ctl("dlq", "show", "failing", "1"))
    assert "\nTraceback (most recent call last):\n" in shown
    assert "\n    raise error\nValueError: no template:" in shown
    assert shown.endswith("\n\n1\n")
    assert "toymq-traceback" not in shown
    for output in (ok(ctl("tail", "failing.dlq")), ok(ctl("tail", "failing.dlq", "--json"))):
        assert not any(word in output for word in ("~seq~", "dlq:failing")), "keys of the broker's own"


def test_a_letter_that_is_not_wanted_is_discarded(web: Ctl, with_gateway: BrokerProcess) -> None:
    with sync.connect(f"toymq://127.0.0.1:{with_gateway.port}") as client:
        client.create("jobs", {"max_attempts": 1})
        for n in range(3):
            client.pub("jobs", f"job {n}".encode())
        with client.sub("jobs", "w") as messages:
            for _ in range(3):
                messages.next(TIMEOUT_S).nack()
        with client.sub("jobs.dlq", "audit") as letters:
            for _ in range(3):
                letters.next(TIMEOUT_S)
    refused(web("dlq", "discard", "jobs", "7"), 1, "jobs.dlq has no dead letter 7")
    assert ok(web("dlq", "discard", "jobs", "0-1")) == "discarded 2\n"
    assert ok(web("dlq", "discard", "jobs", "1")) == "discarded 0: they went back or were discarded before\n"
    assert ok(web("dlq", "redrive", "jobs", "0-1")) == "sent back 0: they went back or were discarded before\n"
    assert rows(web("dlq", "list"))[1] == ["jobs.dlq", "1", "2"]
    assert [(row["letters"], row["settled"]) for row in values(web("dlq", "list", "--json"))] == [(1, 2)]
    assert [row[-1] for row in rows(web("dlq", "list", "jobs", "--all"))] == ["state", "settled", "settled", "waiting"]
    assert ok(web("dlq", "redrive", "jobs")) == "sent back 1\n"
    listed = values(web("dlq", "list", "jobs", "--all", "--json"))
    assert [(row["settled"], "redriven" in row) for row in listed] == [(True, False)] * 3, "the broker knows no more"
    ok(web("create", "healthy"))
    refused(web("dlq", "discard", "healthy", "0"), 1, "healthy has no dead letters")


def test_a_letter_of_a_partition_is_discarded(web: Ctl) -> None:
    ok(web("create", "parted", "partitions=2"))
    for number in range(2):
        ok(web("pub", "parted#1", "bad"))
        ok(web("pull", "parted#1", "w"))
        ok(web("nack", "parted#1", "w", str(number), "--dead"))
    while len(rows(web("dlq", "list", "parted#1"))) < 3:
        pass  # the letters are stored behind the answers
    assert ok(web("dlq", "discard", "parted#1", "0")) == "discarded 1\n"
    assert ok(web("dlq", "discard", "parted#1.dlq", "1")) == "discarded 1\n"
