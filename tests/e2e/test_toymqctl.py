"""Each verb of `toymqctl` as an operator uses it; `pub`, `sub`, `topics`, `ping` are also in test_command_lines.py."""

import json
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import pytest
from click.shell_completion import ZshComplete
from click.testing import CliRunner, Result

from tests.support.broker_process import TIMEOUT_S, BrokerProcess, environment
from toymq_client import sync
from toymq_py.config import TopicSettings
from toymqctl.cli import main as toymqctl
from toymqctl.settings import SETTINGS

SECRET = "a-secret-token"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("data") / "d") as running:
        yield running


@pytest.fixture
def ctl(broker: BrokerProcess) -> Callable[..., Result]:
    def call(*arguments: str, stdin: bytes | str | None = None) -> Result:
        return CliRunner().invoke(toymqctl, ["--url", f"127.0.0.1:{broker.port}", *arguments], input=stdin)

    return call


Ctl = Callable[..., Result]


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def rows(result: Result) -> list[list[str]]:
    return [line.split() for line in ok(result).splitlines()]


def values(result: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in ok(result).splitlines()]


def refused(result: Result, code: int, text: str) -> None:
    """One line on stderr that says it, and nothing on stdout."""
    assert result.exit_code == code, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("toymqctl: ")
    assert text in result.stderr
    assert result.stdout == ""


# -- publishing


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
    assert "PAYLOAD_TOO_LARGE: 2097153 bytes with headers; this broker takes at most 2097152" in result.stderr
    assert "--max-payload" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["x", "--whole"], "PAYLOAD and --whole exclude each other"),
        (["--header", "A: b"], "--header goes with"),
        (["x", "--header", "no colon"], "a header is NAME:VALUE, not 'no colon'"),
        (["x", "--header", "A:b", "--header", "A:c"], "the header A stands twice"),
    ],
)
def test_pub_refuses_what_makes_no_sense(ctl: Ctl, arguments: list[str], text: str) -> None:
    refused(ctl("pub", "t", *arguments), 2, text)


def test_a_topic_that_is_new_is_said_to_whoever_waits(ctl: Ctl) -> None:
    result = ctl("sub", "mispelled", "--timeout", "10ms")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "toymqctl: mispelled is new: nobody has published to it yet\n"


# -- looking


def test_tail_reads_without_a_consumer(ctl: Ctl) -> None:
    ok(ctl("pub", "log", stdin=b"".join(b"line %d\n" % n for n in range(30))))
    assert ok(ctl("tail", "log")).splitlines() == [f"{n}\tline {n}" for n in range(20, 30)]
    assert ok(ctl("tail", "log", "-n", "2")) == "28\tline 28\n29\tline 29\n"
    assert ok(ctl("tail", "log", "-n", "0")) == ""
    assert len(ok(ctl("tail", "log", "--from", "earliest", "--format", "raw")).splitlines()) == 30
    assert ok(ctl("tail", "log", "--from", "27", "--max", "2")) == "27\tline 27\n28\tline 28\n"
    assert ok(ctl("tail", "log", "--from", "latest")) == ""
    assert len(ok(ctl("tail", "log", "--from", "@0")).splitlines()) == 30
    (row,) = values(ctl("tail", "log", "-n", "1", "--json"))
    assert {**row, "ts_ns": 0} == {"topic": "log", "id": 29, "ts_ns": 0, "payload": "line 29"}, "it is no delivery"
    assert values(ctl("describe", "log", "--json"))[0]["consumers"] == []
    assert ok(ctl("tail", "log", "--from", "30")) == ""
    refused(ctl("tail", "log", "--from", "31"), 1, "OUT_OF_RANGE: 0 ")
    refused(ctl("tail", "nothing"), 1, "NO_SUCH_TOPIC: there is no topic nothing; `toymqctl topics` lists")
    refused(ctl("tail", "log", "--from", "soon"), 1, "BAD_ARGUMENT: a position is")


def test_tail_follows_through_a_restart_of_the_broker(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "from toymqctl.cli import main; main()"]
    with BrokerProcess(tmp_path / "d") as broker, broker.connect() as wire:
        assert wire.ask(b"PUB t - 1\na\n") == b"OK 0"
        command = [*program, "--url", f"127.0.0.1:{broker.port}", "tail", "t", "--follow", "--max", "3"]
        with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
            assert tail.stdout is not None
            assert tail.stdout.readline() == "0\ta\n"
            assert wire.ask(b"PUB t - 1\nb\n") == b"OK 1"
            assert tail.stdout.readline() == "1\tb\n"
            broker.restart()
            with broker.connect() as again:
                assert again.ask(b"PUB t - 1\nc\n") == b"OK 2"
            out, errors = tail.communicate(timeout=TIMEOUT_S)
        assert (tail.returncode, out) == (0, "2\tc\n")
        assert errors.startswith(f"toymqctl: 127.0.0.1:{broker.port}: the "), "an outage is said"
        assert errors.endswith("trying again until it is back\n")
        assert errors.count("\n") == 1


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
    assert row[8:] == ["0", "exclusive"]
    (consumer,) = values(ctl("consumers", "seen", "--json"))
    assert (consumer["topic"], consumer["consumer"], consumer["last_acked"], consumer["backlog"]) == ("seen", "one", 1, 1)
    assert [row[:2] for row in rows(ctl("consumers")) if row[0] == "seen"] == [["seen", "one"]]
    ok(ctl("create", "unread"))
    assert ok(ctl("consumers", "unread")) == "no consumers\n"
    assert "ids       none, the next is 0" in ok(ctl("describe", "unread"))
    refused(ctl("describe", "nothing"), 1, "`toymqctl topics` lists")
    refused(ctl("consumers", "nothing"), 1, "`toymqctl topics` lists")


def test_stats(ctl: Ctl) -> None:
    ok(ctl("pub", "counted", "x"))
    names = [line.split("  ")[0] for line in ok(ctl("stats")).splitlines()]
    assert names == [
        "version", "uptime", "connections", "topics", "messages", "published", "delivered", "acked", "errors", "fsync",
        "memory", "disk free",
    ]  # fmt: skip
    (told,) = values(ctl("stats", "--json"))
    assert f"{told['publish_total']}, " in ok(ctl("stats"))


def test_ping_for_programs(ctl: Ctl) -> None:
    first, second = values(ctl("ping", "--count", "2", "--json"))
    assert first.keys() == second.keys() == {"round_trip_s"}


# -- arranging


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
    refused(ctl("config", "arranged", "colour=red"), 1, "colour is no topic setting; there are")
    refused(ctl("config", "arranged", "visibility=soon"), 2, "'soon' is no duration: write 250ms")
    refused(ctl("config", "arranged", "visibility"), 2, "a setting is NAME=VALUE, visibility=30s say, not 'visibility'")
    refused(ctl("config", "arranged", "ttl=1s", "ttl=2s"), 2, "ttl stands twice")
    refused(ctl("config", "nothing"), 1, "NO_SUCH_TOPIC")


def test_delete_asks(ctl: Ctl) -> None:
    ok(ctl("pub", "doomed", "a", "b"))
    kept = ctl("delete", "doomed", stdin="n\n")
    assert (kept.exit_code, kept.stdout) == (1, "")
    assert kept.stderr.endswith("delete doomed with 2 messages and 0 consumers? [y/N]: n\ntoymqctl: nothing was deleted\n")
    nobody = ctl("delete", "doomed", stdin="")
    assert nobody.exit_code == 2
    assert "nothing was deleted; --yes deletes without asking" in nobody.stderr
    assert ctl("delete", "doomed", stdin="y\n").stdout == "deleted doomed with 2 messages\n"
    ok(ctl("pub", "doomed", "c"))
    assert ok(ctl("delete", "doomed", "--yes")) == "deleted doomed with 1 messages\n"
    refused(ctl("delete", "doomed"), 1, "NO_SUCH_TOPIC")


def test_purge_asks(ctl: Ctl) -> None:
    ok(ctl("create", "full", "visibility=5s"))
    ok(ctl("pub", "full", "a", "b"))
    kept = ctl("purge", "full", stdin="n\n")
    assert (kept.exit_code, kept.stdout) == (1, "")
    assert kept.stderr.endswith("purge full of 2 messages, with 0 consumers? [y/N]: n\ntoymqctl: nothing was purged\n")
    assert "nothing was purged; --yes purges without asking" in ctl("purge", "full", stdin="").stderr
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
    refused(ctl("config", "small", "when_full=drop"), 1, "when_full is reject or drop-oldest, or default")
    refused(ctl("config", "small", "colour=1"), 1, "colour is no topic setting")


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
    refused(ctl("ack", "numbered", "one", "5-3"), 2, "message ids ascend")
    refused(ctl("nack", "numbered", "one", "all"), 2, "a message id")
    refused(ctl("ack", "numbered", "two", "1"), 1, "NO_SUCH_CONSUMER")


# -- doctor


def test_doctor_of_a_sound_broker(ctl: Ctl) -> None:
    findings = values(ctl("doctor", "--json"))
    checks = {str(finding["check"]): finding for finding in findings}
    assert set(checks) == {
        "reachable", "round trip", "version", "durability", "disk", "fsync", "limits", "clock", "topics",
    }  # fmt: skip
    assert {str(checks[name]["state"]) for name in ("reachable", "version", "durability", "clock", "topics")} == {"ok"}
    assert "ok    durability: OK means on the disk" in ok(ctl("doctor")).splitlines()


def test_doctor_finds_damage_and_says_what_to_do(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d", "--fsync", "interval") as broker:
        with broker.connect() as wire:
            wire.send(b"PUB hurt - 1\na\nPUB hurt - 1\nb\n")
            assert [wire.line() for _ in range(2)] == [b"OK 0", b"OK 1"]
        broker.stop()
        (log,) = (tmp_path / "d" / "topics" / "hurt").glob("*.log")
        data = bytearray(log.read_bytes())
        data[20] ^= 1
        log.write_bytes(data)
        broker.start()
        result = CliRunner().invoke(toymqctl, ["--url", f"127.0.0.1:{broker.port}", "doctor"])
    assert result.exit_code == 1
    assert "FAIL  topic hurt: degraded: 1 messages are lost to damage, the others are served\n      do: `toymq" in result.stdout
    assert "warn  durability: --fsync interval: OK does not mean" in result.stdout


def test_doctor_of_nobody() -> None:
    result = CliRunner().invoke(toymqctl, ["--url", "127.0.0.1:1", "doctor"])
    assert result.exit_code == 1
    assert result.stdout.startswith("FAIL  reachable: no broker at 127.0.0.1:1: start one with `make run` or `toymq serve`")


# -- the wrong address


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A server that says one thing to everybody, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(65536)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP: name the broker's TCP port, 6789 unless"),
        (b"220 mail.example ESMTP\r\n", "is 127.0.0.1:"),
        (b"ERR AUTH_FAILED no\n", "AUTH_FAILED: no; the token is not in the broker's auth file; set another with TOYMQ_TOKEN"),
    ],
)
def test_somebody_else_answers(answer: bytes, text: str) -> None:
    with answering(answer) as port:
        refused(CliRunner().invoke(toymqctl, ["--url", f"127.0.0.1:{port}", "ping"]), 1, text)


def test_a_host_that_is_none() -> None:
    refused(CliRunner().invoke(toymqctl, ["--url", "nobody.invalid", "ping"]), 1, "check the host in --url")


# -- the token


def test_a_token_from_environment_or_file_never_shows(broker: BrokerProcess, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(SECRET + "\n")
    url = f"127.0.0.1:{broker.port}"
    for arguments, env in (
        (["--token-file", str(path)], {"TOYMQ_TOKEN": "another"}),
        ([], {"TOYMQ_TOKEN": SECRET}),
        ([], {"TOYMQ_URL": f"toymq://{SECRET}@{url}"}),
    ):
        named = [] if "TOYMQ_URL" in env else ["--url", url]
        for command, code in (["ping"], 0), (["describe", "nothing"], 1), (["--help"], 0), (["sub"], 2):
            result = CliRunner().invoke(toymqctl, [*named, *arguments, *command], env=env)
            assert result.exit_code == code, result.output
            assert SECRET not in result.output


def test_a_token_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("from-file\n")
    for arguments, env, token in (
        (["--token-file", str(path)], {"TOYMQ_TOKEN": "from-environment"}, b"from-file"),
        ([], {"TOYMQ_TOKEN": "from-environment"}, b"from-environment"),
    ):
        with socket.create_server(("127.0.0.1", 0)) as server:
            said: list[bytes] = []

            def serve(server: socket.socket = server, said: list[bytes] = said) -> None:
                connection, _ = server.accept()
                with connection:
                    said.append(connection.recv(65536))
                    connection.sendall(b"ERR AUTH_FAILED no\n")

            thread = threading.Thread(target=serve)
            thread.start()
            result = CliRunner().invoke(
                toymqctl, ["--url", f"127.0.0.1:{server.getsockname()[1]}", *arguments, "ping"], env=env
            )
            thread.join()
        assert b"auth=" + token + b" " in said[0]
        assert result.exit_code == 1
        assert token.decode() not in result.output


@pytest.mark.parametrize(
    ("arguments", "env", "text"),
    [
        (["--token", SECRET], {}, "shows in the process list: use TOYMQ_TOKEN or --token-file"),
        (["--url", f"toymq://{SECRET}@h"], {}, "shows in the process list"),
        ([], {"TOYMQ_TOKEN": SECRET + " x"}, "the token in TOYMQ_TOKEN is not one word of printable ASCII"),
    ],
)
def test_a_token_in_the_wrong_place_is_refused(arguments: list[str], env: dict[str, str], text: str) -> None:
    result = CliRunner().invoke(toymqctl, [*arguments, "ping"], env=env)
    refused(result, 2, text)
    assert SECRET not in result.output


# -- completion


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """`toymqctl` as it is installed."""
    path = tmp_path / "bin" / "toymqctl"
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable}\nfrom toymqctl.cli import main\nmain()\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["toymqctl", "desc"], {"describe"}),
        (["toymqctl", "completion", ""], {"bash", "zsh", "fish"}),
        (["toymqctl", "describe", "tab."], {"tab.one", "tab.two"}),
        (["toymqctl", "seek", "tab.one", "wor"], {"worker"}),
        (["toymqctl", "sub", "t", "--no"], {"--no-ack"}),
        (["toymqctl", "sub", "tab.one", "--consumer", "wor"], {"worker"}),
        (["toymqctl", "sub", "--consumer", "wor"], {"worker"}),
        (["toymqctl", "sub", "t", "--mode", "s"], {"shared"}),
        (["toymqctl", "pull", "tab.*", ""], {"worker"}),
        (["toymqctl", "dlq", "re"], {"redrive"}),
        (["toymqctl", "config", "tab.one", "retain_m"], {"retain_max_age=", "retain_max_bytes="}),
    ],
)
def test_bash_completes(ctl: Ctl, broker: BrokerProcess, program: Path, words: list[str], expected: set[str]) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    ok(ctl("pub", "tab.one", "x"))
    ok(ctl("pub", "tab.two", "x"))
    ok(ctl("sub", "tab.one", "--consumer", "worker", "--max", "1"))
    script = (
        'eval "$(toymqctl completion bash)"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        '_toymqctl_completion toymqctl; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    env = {**environment(), "TOYMQ_URL": f"127.0.0.1:{broker.port}"}
    env["PATH"] = f"{program.parent}:{env['PATH']}"
    done = subprocess.run(
        [bash, "-c", script, "bash", *words], env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.stderr == ""
    assert set(done.stdout.split()) == expected


def test_a_work_queue_from_the_shell(ctl: Ctl) -> None:
    for n in range(4):
        ok(ctl("pub", f"work.{n % 2}", f"job {n}"))
    (first, second) = values(ctl("pull", "work.*", "w", "--max", "2", "--visibility", "1h", "--json"))
    assert {first["topic"], second["topic"]} <= {"work.0", "work.1"}
    assert ok(ctl("ack", str(first["topic"]), "w", str(first["id"]))) == "acked 1\n"
    assert ok(ctl("nack", str(second["topic"]), "w", str(second["id"]), "--delay", "0")) == "gave back 1\n"
    left = rows(ctl("pull", "work.*", "w", "--max", "9", "--ack", "--wait", "5s"))
    while len(left) < 3:
        left += rows(ctl("pull", "work.*", "w", "--max", "9", "--ack", "--wait", "5s"))
    assert sorted(row[-1] for row in left) == sorted({"0", "1", "2", "3"} - {str(first["payload"])[-1]})
    nothing = ctl("pull", "work.*", "w")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert nothing.stderr == "toymqctl: nothing is ready in work.* for w\n"
    refused(ctl("pull", "work.*", "w", "--max", "0"), 2, "--max")
    refused(ctl("pull", "work.*"), 2, "Missing argument 'CONSUMER'")
    refused(ctl("pull", "work.*", "w", "--wait", "soon"), 2, "'soon' is no duration: write 500ms, 5s or 2m")


def test_workers_that_share_from_the_shell(ctl: Ctl, broker: BrokerProcess) -> None:
    ok(ctl("pub", "shared.work", "x"))
    with sync.connect(f"127.0.0.1:{broker.port}") as client:
        client.sub("shared.work", "w", mode="shared", window=1).next(TIMEOUT_S)
        ok(ctl("pub", "shared.work", "y"))
        shared = ctl("sub", "shared.*", "--consumer", "w", "--mode", "shared", "--max", "1", "--timeout", "5s")
        assert rows(shared)[0][-1] == "y"
        refused(ctl("sub", "shared.work", "--consumer", "w", "--mode", "exclusive"), 1, "subscribe with the --mode of those")
    refused(ctl("sub", "t", "--mode", "share"), 2, "not one of 'exclusive', 'shared'")


def test_delays_and_ttls(ctl: Ctl) -> None:
    assert ok(ctl("pub", "later", "x", "--delay", "1h")) == "OK 0\n"
    assert ok(ctl("pub", "later", "--delay", "365d", "--ttl", "10s", stdin=b"a\nb\n")) == "published 2\n"
    assert ok(ctl("pub", "later", "y", "--ttl", "30d")) == "OK 3\n"
    assert [row["id"] for row in values(ctl("sub", "later", "--max", "1", "--json"))] == [3]
    assert values(ctl("consumers", "later", "--json"))[0]["scheduled"] == 3
    for arguments, text in (
        (("--delay", "100000d"), "delay is a duration in seconds, from 0 to ten years"),
        (("--delay", "-1"), "no duration"),
        (("--ttl", "0"), "nothing would be delivered"),
    ):
        result = ctl("pub", "later", "x", *arguments)
        assert result.exit_code in (1, 2)
        refused(result, result.exit_code, text)


def test_a_full_queue_says_what_to_do(ctl: Ctl) -> None:
    ok(ctl("create", "brimful", "backlog_max_messages=1"))
    ok(ctl("pub", "brimful", "x"))
    refused(ctl("pub", "brimful", "y"), 1, "or raise the limit with `toymqctl config`")
    refused(ctl("create", "brimful", "backlog_max_messages=2"), 1, "`toymqctl config TOPIC` shows and changes them")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--bad"], "toymqctl: No such option '--bad' (see `toymqctl --help`)"),
        (["--url"], "toymqctl: Option '--url' requires an argument (see `toymqctl --help`)"),
        (["--token-file", "/not/there", "ping"], "File '/not/there' does not exist (see `toymqctl --help`)"),
        (["pubb"], "Did you mean 'pub'? (see `toymqctl --help`)"),
        (["dlq", "lits"], "Did you mean 'list'? (see `toymqctl dlq --help`)"),
        (["pub"], "Missing argument 'TOPIC' (see `toymqctl pub --help`)"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], text: str) -> None:
    refused(CliRunner().invoke(toymqctl, arguments), 2, text)


@pytest.mark.parametrize("arguments", [[], ["dlq"]])
def test_no_command_at_all_shows_which_there_are(arguments: list[str]) -> None:
    result = CliRunner().invoke(toymqctl, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: toymqctl")


def test_the_settings_that_are_completed_are_those_there_are() -> None:
    assert sorted(field.name for field in fields(TopicSettings)) == SETTINGS


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
    assert first == {
        "topic": "jobs.dlq", "id": 0, "origin_topic": "jobs", "origin_id": 0, "key": "k0", "consumer": "w", "attempts": 1,
        "reason": "poison", "redrives": 0, "redriven": False, "bytes": 5,
    }  # fmt: skip
    assert [(row["id"], row["reason"]) for row in others] == [(1, "poison"), (2, "rejected")]
    table = rows(ctl("dlq", "list", "jobs.dlq"))
    assert table[0] == ["id", "died", "origin", "consumer", "attempts", "reason", "key", "size"]
    assert table[1][-6:] == ["0", "w", "1", "poison", "k0", "5B"]
    shown = ok(ctl("dlq", "show", "jobs", "1"))
    assert "toymq-origin-key" in shown
    assert shown.endswith("\n\njob 1\n")
    assert ok(ctl("dlq", "show", "jobs", "1", "--format", "raw")) == "job 1\n"
    assert values(ctl("dlq", "show", "jobs", "1", "--json"))[0]["payload"] == "job 1"
    refused(ctl("dlq", "show", "jobs", "7"), 1, "OUT_OF_RANGE")
    refused(ctl("dlq", "show", "jobs", "3"), 1, "jobs.dlq has no letter 3")
    assert ok(ctl("dlq", "redrive", "jobs", "1")) == "sent back 1\n"
    assert [row["id"] for row in values(ctl("dlq", "list", "jobs", "--json"))] == [0, 2]
    assert [row["redriven"] for row in values(ctl("dlq", "list", "jobs", "--all", "--json"))] == [False, True, False]
    assert len(rows(ctl("dlq", "list", "jobs", "-n", "1"))) == 2
    assert rows(ctl("dlq", "list")) == [["topic", "letters", "redriven"], ["jobs.dlq", "2", "1"]]
    assert ok(ctl("dlq", "redrive", "jobs.dlq", "--max", "1")) == "sent back 1\n"
    assert ok(ctl("dlq", "redrive", "jobs")) == "sent back 1\n"
    assert ok(ctl("dlq", "redrive", "jobs")) == "sent back 0\n"
    assert ok(ctl("dlq", "list", "jobs")) == "no dead letters\n"
    refused(ctl("dlq", "list", "nothing"), 1, "NO_SUCH_TOPIC")
    refused(ctl("dlq", "redrive", "nothing"), 1, "NO_SUCH_TOPIC")
    assert [row["payload"] for row in values(ctl("tail", "jobs", "--from", "3", "--json"))] == ["job 1", "job 0", "job 2"]


def test_without_a_broker_nothing_is_completed_and_nothing_said() -> None:
    complete = ZshComplete(toymqctl, {}, "toymqctl", "_TOYMQCTL_COMPLETE")
    assert complete.get_completions(["--url", "127.0.0.1:1", "describe"], "") == []
    assert [item.value for item in complete.get_completions([], "fo")] == ["forget"]


@pytest.mark.parametrize(("shell", "text"), [("zsh", "#compdef toymqctl"), ("fish", "complete --no-files --command toymqctl")])
def test_other_shells_have_their_script(shell: str, text: str) -> None:
    assert text in ok(CliRunner().invoke(toymqctl, ["completion", shell]))


def test_every_command_says_what_it_does() -> None:
    for name, command in toymqctl.commands.items():
        assert (command.help or "").strip(), f"{name} has no help"
        assert ok(CliRunner().invoke(toymqctl, [name, "--help"])).startswith("Usage: ")
