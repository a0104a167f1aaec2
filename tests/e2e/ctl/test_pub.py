"""`toymqctl pub`."""

import fcntl
import signal
import subprocess
import sys
import termios
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess, environment
from tests.support.ctl import Ctl, ok, on_a_terminal, refused, values
from toymq import sync
from toymq.errors import BadArgument


def test_pub_with_headers_and_whole_files(ctl: Ctl, tmp_path: Path) -> None:
    picture = tmp_path / "picture"
    picture.write_bytes(b"a\nb\n")
    assert ok(ctl("pub", "whole", "--file", str(picture), "--whole", "--header", "Kind: cat", "--key", "k")) == "OK 0\n"
    assert ok(ctl("pub", "whole", "--whole", stdin=b"c\nd")) == "OK 1\n"
    first, second = values(ctl("tail", "whole", "--json"))
    assert (first["payload"], first["headers"], first["key"]) == ("a\nb\n", {"Kind": "cat"}, "k")
    assert (second["payload"], "key" in second) == ("c\nd", False)


def test_a_stream_says_how_far_it_came(ctl: Ctl) -> None:
    result = ctl("pub", "cut", stdin=b"a\nb\n" + b"x" * (2 * 1024 * 1024 + 1) + b"\nc\n")
    assert result.exit_code == 1
    assert result.stdout == "published 2\n"
    assert "PAYLOAD_TOO_LARGE: 2097153 bytes with headers; this broker takes at most 2097152 (--max-payload)" in result.stderr
    assert "--max-payload" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["x", "--whole"], "PAYLOAD and --whole exclude each other"),
        (["--header", "A: b"], "--header goes with"),
        (["x", "--header", "no colon"], "invalid header 'no colon': write NAME:VALUE"),
        (["x", "--header", "A:b", "--header", "A:c"], "the header A is given twice"),
    ],
)
def test_pub_refuses_what_makes_no_sense(ctl: Ctl, arguments: list[str], text: str) -> None:
    refused(ctl("pub", "t", *arguments), 2, text)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--key", ""], "invalid key: it is empty; leave the key out to publish without one\n"),
        (["--key", "a b"], "; leave the key out to publish without one\n"),
        (["--route", "a b"], "; leave the route out, and the key decides\n"),
    ],
)
def test_a_wrong_key_is_refused_in_words_of_the_shell(ctl: Ctl, arguments: list[str], text: str) -> None:
    """Found: the error was that of the Python client, `key=None publishes without a key`."""
    refused(ctl("pub", "t", "x", *arguments), 1, text)


def test_a_topic_that_is_new_is_said_to_whoever_waits(ctl: Ctl) -> None:
    result = ctl("sub", "mispelled", "--timeout", "10ms")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "toymqctl: mispelled was not there and is made now: `toymqctl delete mispelled` removes it\n"


def test_delays_and_ttls(ctl: Ctl) -> None:
    assert ok(ctl("pub", "later", "x", "--delay", "1h")) == "OK 0\n"
    assert ok(ctl("pub", "later", "--delay", "365d", "--ttl", "366d", stdin=b"a\nb\n")) == "published 2\n"
    assert ok(ctl("pub", "later", "y", "--ttl", "30d")) == "OK 3\n"
    assert [row["id"] for row in values(ctl("sub", "later", "--max", "1", "--json"))] == [3]
    assert values(ctl("consumers", "later", "--json"))[0]["scheduled"] == 3
    for arguments, text in (
        (("--delay", "100000d"), "invalid duration '100000d': write 0ms to ten years"),
        (("--delay", "-1"), "invalid duration '-1'"),
        (("--ttl", "0"), "nothing would be delivered"),
    ):
        refused(ctl("pub", "later", "x", *arguments), 2, text)


def test_a_payload_is_published_many_times(ctl: Ctl) -> None:
    assert ok(ctl("pub", "load", "x", "--count", "1000", "--header", "a: b")) == "published 1000\n"
    assert values(ctl("topics", "load", "--json"))[0]["messages"] == 1000, "none is a duplicate of another"
    assert values(ctl("tail", "load", "-n", "1", "--json"))[0]["headers"] == {"a": "b"}
    for arguments in (("x", "y", "--count", "2"), ("--count", "2"), ("x", "--count", "2", "--key", "k")):
        refused(ctl("pub", "load", *arguments), 2, "--count goes with exactly one PAYLOAD, and not with --key")
    ok(ctl("create", "narrow", "backlog_max_messages=3"))
    full = ctl("pub", "narrow", "x", "--count", "9")
    assert (full.exit_code, full.stdout) == (1, "published 3\n"), "what was published before a refusal is said"
    assert "QUEUE_FULL" in full.stderr


def test_a_full_queue_says_what_to_do(ctl: Ctl) -> None:
    ok(ctl("create", "brimful", "backlog_max_messages=1"))
    ok(ctl("pub", "brimful", "x"))
    refused(ctl("pub", "brimful", "y"), 1, "or raise the limit with `toymqctl config`")
    refused(ctl("create", "brimful", "backlog_max_messages=2"), 1, "not 2: config changes it")


def test_a_topic_that_remembers_no_producer_can_be_published_to(ctl: Ctl, broker: BrokerProcess) -> None:
    ok(ctl("create", "forgetful", "dedupe_keys=0"))
    refused(ctl("pub", "forgetful", "x"), 1, "toymqctl: pub --no-dedupe")
    with sync.connect(broker.url) as mq, pytest.raises(BadArgument, match="idempotent=False"):
        mq.pub("forgetful", b"x")
    assert ok(ctl("pub", "forgetful", "x", "--no-dedupe")) == "OK 0\n"
    assert ok(ctl("pub", "forgetful", "--no-dedupe", stdin=b"y\nz\n")) == "published 2\n"


@contextmanager
def publishing(broker: BrokerProcess, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `toymqctl pub` with its messages from a pipe, as in `tail -f log | toymqctl pub TOPIC`."""
    program = [sys.executable, "-c", "from toymqctl.cli import main; main()"]
    command = [*program, "--url", f"127.0.0.1:{broker.port}", "pub", *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env=environment()
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def feed(process: "subprocess.Popen[bytes]", data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(data)


def unread_bytes(process: "subprocess.Popen[bytes]") -> int:
    assert process.stdin is not None
    count = array("i", [0])
    fcntl.ioctl(process.stdin, termios.FIONREAD, count)
    return count[0]


def test_lines_of_a_slow_stream_are_published_as_they_come(broker: BrokerProcess) -> None:
    with sync.connect(broker.url) as mq, publishing(broker, "slow") as process:
        messages = mq.sub("slow", "c", auto_ack=True)
        for line in (b"one", b"two"):
            feed(process, line + b"\n")
            assert messages.next(20).payload == line, "published while the stream goes on"
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (0, b"published 2\n", b"")


def test_an_interrupted_stream_counts_what_is_stored(broker: BrokerProcess) -> None:
    with sync.connect(broker.url) as mq, publishing(broker, "stopped") as process:
        mq.create("stopped")
        feed(process, b"".join(b"%d\n" % n for n in range(1000)) + b"half")
        with mq.sub("stopped", "c") as messages:
            messages.next(20)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
        stored = mq.offsets("stopped")[1]
        assert (process.returncode, out) == (130, b"published %d\n" % stored)
        assert stored == 1000, "what was read is published"
        assert err == b"toymqctl: not published: the last 4 bytes, which no newline ends\n"


def test_interrupted_copies_count_what_is_stored(broker: BrokerProcess) -> None:
    """Found: the count after an interruption was 1,024 too low."""
    with sync.connect(broker.url) as mq, publishing(broker, "copied", "x", "--count", "100000000") as process:
        mq.create("copied")
        with mq.sub("copied", "c") as messages:
            messages.next(20)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
        assert (process.returncode, out, err) == (130, b"published %d\n" % mq.offsets("copied")[1], b"")


def test_an_interrupted_stream_says_what_is_open(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker, publishing(broker, "open") as process:
        feed(process, b"one\n")
        with sync.connect(broker.url) as mq, mq.sub("open", "c") as messages:
            messages.next(20)
        broker.signal(signal.SIGSTOP)
        feed(process, b"two\nthree\n")
        deadline = time.perf_counter() + 20
        while unread_bytes(process):
            assert time.perf_counter() < deadline, "it reads what is there"
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)  # waits for the broker
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out) == (130, b"published 1\n")
        assert b"toymqctl: the outcome of the next 2 lines is unknown\n" in err
        broker.signal(signal.SIGCONT)


def test_a_terminal_says_that_several_words_are_several_messages(ctl: Ctl, broker: BrokerProcess) -> None:
    note = "toymqctl: 2 messages, one for each PAYLOAD: quotes make one of several words"
    assert on_a_terminal(broker, "pub", "greetings", "hello", "world").splitlines()[0] == note
    assert on_a_terminal(broker, "pub", "greetings", "hello world").splitlines() == ["OK 2"]
    assert ok(ctl("pub", "greetings", "hello", "world")) == "OK 3\nOK 4\n", "a script is told nothing"
