"""Partitioned topics on the command line."""

from zlib import crc32

from tests.support.ctl import Ctl, ok, refused, rows, values


def test_what_text_names_of_a_partitioned_topic_is_what_other_commands_take(ctl: Ctl) -> None:
    """Found: the output had an id without its partition, and `ack` refused it as PARTITIONED."""
    ok(ctl("create", "named", "--partitions", "2"))
    ok(ctl("pub", "named#1", "x"))
    assert ok(ctl("tail", "named")) == "named#1 0\tx\n"
    assert ok(ctl("tail", "named#1")) == "0\tx\n"
    assert ok(ctl("sub", "named", "--max", "1", "--no-ack", "--mode", "shared")) == "named#1 0\tx\n"
    assert ok(ctl("sub", "named#*", "--consumer", "d", "--max", "1")) == "named#1 0\tx\n"
    (topic, msg_id), _ = (cell.split() for cell in ok(ctl("pull", "named", "c")).split("\t"))
    assert ok(ctl("nack", topic, "c", msg_id, "--dead")) == "gave up 1\n"
    while len(listed := rows(ctl("dlq", "list", "named"))) < 2:
        pass  # the letter is stored behind the answer
    assert listed[0][:2] == ["topic", "id"]
    assert listed[1][:2] == ["named#1.dlq", "0"]
    assert rows(ctl("dlq", "list", "named", "--group"))[1][:4] == ["1", "#1", "0", "#1"]
    assert rows(ctl("dlq", "list", "named#1", "--group"))[1][:3] == ["1", "0", "0"]
    assert ok(ctl("dlq", "show", *listed[1][:2], "--format", "raw")) == "x\n"
    assert rows(ctl("dlq", "list", "named#1"))[0][0] == "id"


def test_settings_that_not_all_partitions_have_are_told(ctl: Ctl) -> None:
    """Found: when partitions had different settings, `describe` said "the broker's defaults", and `config` nothing."""
    ok(ctl("create", "uneven", "--partitions", "2"))
    assert "settings    the broker's defaults" in ok(ctl("describe", "uneven"))
    ok(ctl("config", "uneven#1", "max_attempts=7"))
    assert "settings    max_attempts: not the same in all partitions, see below\n" in ok(ctl("describe", "uneven"))
    ok(ctl("config", "uneven", "ttl=1h"))
    assert "settings    ttl=1h and max_attempts: not the same in all partitions, see below\n" in ok(ctl("describe", "uneven"))
    (found,) = values(ctl("describe", "uneven", "--json"))
    assert (found["settings"], found["settings_differ"]) == ({"ttl": 3_600_000}, ["max_attempts"])
    shown = ctl("config", "uneven")
    assert shown.stdout.split() == ["partitions=2", "ttl=1h"]
    assert shown.stderr == "max_attempts: not the same in all partitions, see `toymqctl describe uneven`\n"


def test_a_partitioned_topic_from_its_creation_to_its_end(ctl: Ctl) -> None:
    assert ok(ctl("create", "parted", "--partitions", "4", "visibility=2m")) == "parted is made\n"
    assert ok(ctl("create", "parted", "--partitions", "4")) == "parted was there already\n"
    refused(ctl("create", "parted", "--partitions", "5"), 1, "exists with partitions=4, not 5")
    place = f"parted#{crc32(b'customer-7') % 4}"
    for number in range(6):
        assert ok(ctl("pub", "parted", f"m{number}", "--route", "customer-7")) == f"OK {number} {place}\n"
    said = ok(ctl("pub", "parted", "other", "--count", "8"))
    assert said == "published 8: parted#0 2, parted#1 2, parted#2 2, parted#3 2\n"
    (line,) = [row for row in rows(ctl("topics")) if row[0].startswith("parted")]
    assert line[:2] == ["parted#0-3", "14"]
    assert [row[0] for row in rows(ctl("topics", "parted#*"))[1:]] == [f"parted#{number}" for number in range(4)]
    assert len(values(ctl("topics", "parted#*", "--json"))) == 4
    described = ok(ctl("describe", "parted"))
    assert "partitions  4" in described
    assert "visibility=2m" in described
    assert place in described
    assert ["partition", "messages"] in [line.split()[:2] for line in described.splitlines()], "one process has all"
    shown = ok(ctl("tail", "parted", "--from", "earliest", "--format", "raw"))
    assert sorted(shown.split()) == sorted([*(f"m{number}" for number in range(6)), *["other"] * 8])
    assert [line for line in shown.split() if line != "other"] == [f"m{number}" for number in range(6)], "a partition in order"
    got = values(ctl("sub", "parted", "--consumer", "c", "--mode", "single", "--max", "14", "--json"))
    assert {one["topic"] for one in got} == {f"parted#{number}" for number in range(4)}
    assert sum(each["acked_total"] for each in values(ctl("consumers", "parted", "--json"))) == 14
    assert ok(ctl("seek", "parted", "c", "earliest")) == "c goes on at earliest in 4 partitions\n"
    assert ok(ctl("config", "parted", "ttl=1h")).split() == ["partitions=4", "visibility=2m", "ttl=1h"]
    (pulled,) = values(ctl("pull", "parted", "c", "--json"))
    ok(ctl("nack", pulled["topic"], "c", str(pulled["id"]), "--dead"))
    while len(rows(ctl("dlq", "list", "parted"))) < 2:
        pass  # the letter is stored behind the answer
    assert ok(ctl("dlq", "redrive", "parted")) == "sent back 1\n"
    assert ok(ctl("purge", "parted", "--yes")) == "purged parted of 15 messages\n"
    assert "deleted parted with" in ok(ctl("delete", "parted", "--yes"))


def test_what_is_published_is_in_the_partition_that_is_said(ctl: Ctl) -> None:
    """Found: `pub` did not print the partition, and the id alone does not identify a message."""
    ok(ctl("create", "told", "--partitions", "3"))
    told: list[tuple[str, list[str]]] = []
    for payload, options in (("a", ["--key", "k"]), ("a", ["--key", "k"]), ("b", ["--header", "toymq-group:g"]), ("c", [])):
        word, msg_id, place = ok(ctl("pub", "told", payload, *options)).split()
        assert word == ("DUP" if (payload, options) in told else "OK")
        told.append((payload, options))
        assert {"id": int(msg_id), "payload": payload}.items() <= values(ctl("tail", place, "--json"))[int(msg_id)].items()
    said = ok(ctl("pub", "told", stdin="".join(f"line {number}\n" for number in range(30))))
    counts = dict(part.split() for part in said.removeprefix("published 30: ").split(", "))
    assert counts == {"told#0": "10", "told#1": "10", "told#2": "10"}
    assert sum(int(row[1]) for row in rows(ctl("topics", "told#*"))[1:]) == 33
