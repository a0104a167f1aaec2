"""`toymq serve --workers`, as processes."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

import toymq
from tests.support.broker_process import COMMAND, ROOT, Wire, environment, run
from tests.support.certificates import CERT, KEY, client_context
from tests.support.worker_processes import publish, serving, topic_of
from toymq.sockets import reserved_port
from toymq_py.clock import SystemClock
from toymq_py.config.options import ServeOptions
from toymq_py.runtime.heap_trimming import available_bytes
from toymq_py.worker_processes import seats


def test_each_topic_is_with_one_worker_and_the_others_name_it_to_a_client_that_follows(tmp_path: Path) -> None:
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        for worker in (0, 1):
            topic = topic_of(worker, 2)
            with workers.wire(worker) as here, workers.wire(1 - worker) as there:
                assert there.ask(b"CLUSTER moved=1\n").startswith(b"JSON")
                assert json.loads(there.line())["worker"] == 1 - worker
                address = f"ERR MOVED 127.0.0.1:{workers.ports[worker]} (worker {worker}) has the topic {topic}".encode()
                for command in ("CREATE {}", "DESCRIBE {}", "SUB {} c", "PULL {} c 1", "DELETE {}"):
                    assert there.ask(command.format(topic).encode() + b"\n") == address, command
                assert publish(there, topic, "x") == address
                assert publish(here, topic, "x") == b"OK 0"
                assert here.ask(b"DESCRIBE %b.dlq\n" % topic.encode()).startswith(b"ERR NO_SUCH_TOPIC")
                assert there.ask(b"DESCRIBE %b.dlq\n" % topic.encode()).startswith(b"ERR MOVED")
        assert workers.stop() == 0
        workers.join()


def test_a_worker_that_is_killed_is_replaced_at_its_address_and_the_others_go_on(tmp_path: Path) -> None:
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        with workers.wire(0) as other:
            for turn in range(3):
                with workers.wire(1) as wire:
                    assert publish(wire, topic_of(1, 2), str(turn)) == b"OK %d" % turn
                port = workers.ports[1]
                os.kill(workers.pids[1], signal.SIGKILL)
                workers.ready(1)
                assert workers.ports[1] == port
                assert publish(other, topic_of(0, 2), str(turn)) == b"OK %d" % turn
        assert "worker 1 was ended by SIGKILL" in workers.said
        with workers.wire(1) as wire:
            wire.send(f"SUB {topic_of(1, 2)} c start=earliest window=9\n".encode())
            assert wire.line().startswith(b"OK")
            assert [wire.message()[2] for _ in range(3)] == [b"0", b"1", b"2"]


def test_workers_end_with_a_supervisor_that_is_killed_and_what_was_acknowledged_is_there(tmp_path: Path) -> None:
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        for worker in (0, 1):
            with workers.wire(worker) as wire:
                assert publish(wire, topic_of(worker, 2), "kept") == b"OK 0"
        workers.process.kill()
        workers.join()
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        for worker in (0, 1):
            with workers.wire(worker) as wire:
                assert publish(wire, topic_of(worker, 2), "next") == b"OK 1"
        assert workers.stop() == 0


def test_workers_share_the_memory_of_the_machine(tmp_path: Path) -> None:
    """Found: each worker accepted publishes until it alone used 80 % of the memory."""
    options = ServeOptions(data_dir=str(tmp_path / "data"), listen="127.0.0.1:0", workers=3, min_free_bytes=0)
    with seats(options, SystemClock()) as some:
        assert {seat.options.memory_max_bytes for seat in some} == {available_bytes() * 80 // 300}
    with seats(replace(options, memory_max_bytes=1 << 30), SystemClock()) as some:
        assert {seat.options.memory_max_bytes for seat in some} == {1 << 30}, "what is said holds for each"


def test_what_comes_before_a_worker_is_up_waits_for_it(tmp_path: Path) -> None:
    """Found: the command was answered SHUTTING_DOWN, and the connection ended."""
    with serving(tmp_path / "data", 4) as workers:
        workers.ready(1)
        (first,) = workers.ports
        with workers.wire(first) as wire:
            for worker in range(4):
                topic = topic_of(worker, 4).encode()
                assert wire.ask(b"FETCH %b 0 1\n" % topic) == b"ERR NO_SUCH_TOPIC there is no topic %b" % topic


def test_a_worker_that_cannot_start_does_not_stop_the_others(tmp_path: Path) -> None:
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        assert workers.stop() == 0
        workers.join()
    (tmp_path / "data/workers/1/LOCK").unlink()
    (tmp_path / "data/workers/1/LOCK").mkdir()
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(1)
        with workers.wire(0) as wire:
            assert publish(wire, topic_of(0, 2), "x") == b"OK 0"
        workers.hears("worker 1: cannot use")
        (tmp_path / "data/workers/1/LOCK").rmdir()
        workers.ready(1)
        assert workers.stop() == 0


def test_a_worker_whose_directory_goes_away_waits_until_it_is_back(tmp_path: Path) -> None:
    """Found: the worker's next process created an empty directory, and its topics began at id 0."""
    home, topic = tmp_path / "data/workers/1", topic_of(1, 2)
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        with workers.wire(1) as wire:
            assert publish(wire, topic, "x") == b"OK 0"
        home.rename(tmp_path / "away")
        os.kill(workers.pids[1], signal.SIGKILL)
        workers.hears(f"worker 1: {home} is missing")
        with workers.wire(0) as wire:
            assert publish(wire, topic_of(0, 2), "x") == b"OK 0"
        assert not home.exists()
        (tmp_path / "away").rename(home)
        workers.ready(1)
        with workers.wire(1) as wire:
            assert publish(wire, topic, "y") == b"OK 1"
        home.rename(tmp_path / "away")
        assert workers.stop() == 0
    ended = run("serve", "--data-dir", str(tmp_path / "data"), "--workers", "2", "--listen", "127.0.0.1:0")
    assert ended.returncode == 2
    assert f"{home} is missing, or has no topics directory, and it has the topics of worker 1: mount" in ended.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--workers", "3"), "is divided over 2 workers: serve it with --workers 2, or change that with `toymq workers "),
        ((), "is divided over 2 workers: `toymq serve --workers 2` serves it"),
        (("--workers", "2", "--listen", "0.0.0.0:6789", "--insecure-public"), "give an address of this machine"),
        (("--workers", "2", "--listen", "127.0.0.1:6789", "--http", "127.0.0.1:6790"), "of worker"),
        (("--workers", "2", "--listen", "127.0.0.1:6789", "--http", "127.0.0.1:6788"), "is the address of --listen "),
        (("--workers", "2", "--definitions", "some.toml"), "--definitions and --workers exclude each other"),
        (("--workers", "2", "--amqp", "127.0.0.1:0"), "--amqp and --workers exclude each other: leave one out"),
        (("--workers", "2", "--listen", "127.0.0.1:65535"), "worker 0 would have port 65536, over 65535: give a lower one"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_refused(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        assert workers.stop() == 0
    listen = () if "--listen" in options else ("--listen", "127.0.0.1:0")
    ended = run("serve", "--data-dir", str(tmp_path / "data"), *listen, *options)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_directory_of_one_process_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "topics/orders").mkdir(parents=True)
    ended = run("serve", "--data-dir", str(tmp_path), "--workers", "2", "--listen", "127.0.0.1:0")
    assert ended.returncode == 2
    assert "only an empty directory can be divided over workers: serve it without --workers" in ended.stderr
    assert not (tmp_path / "workers.json").exists()


def test_one_process_loads_nothing_of_it() -> None:
    code = """
import sys, toymq_py.daemon, toymq_py.cli.serve
print(sorted({"toymq_py.worker_processes"} & sys.modules.keys()))
"""
    ended = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert ended.stdout == "[]\n", ended.stderr


def test_the_guide_tells_the_truth(tmp_path: Path) -> None:
    """The program and the transcript of docs/more-cores.md run at every worker."""
    page = (ROOT / "docs/more-cores.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (transcript,) = re.findall(r"```\n(> .*?)```", page, re.DOTALL)
    for start in (0, 1):
        with serving(tmp_path / str(start), 2) as workers:
            workers.ready(2)
            text = program.replace("127.0.0.1:6789", f"127.0.0.1:{workers.ports[start]}")
            ended = subprocess.run(
                [sys.executable, "-W", "error", "-c", text], env=environment(), capture_output=True, text=True, check=False
            )
            assert (ended.returncode, ended.stderr) == (0, "")
            with workers.wire(start) as wire:
                wire.follow(transcript)


def test_a_person_at_any_worker_uses_every_topic(tmp_path: Path) -> None:
    """Over one connection, as with nc: commands are answered in order, messages of both workers delivered, and acks reach
    them."""
    topics = [topic_of(worker, 2) for worker in (0, 1)]
    for start in (0, 1):
        with serving(tmp_path / str(start), 2) as workers:
            workers.ready(2)
            with workers.wire(start) as wire:
                wire.send("".join(f"PUB {topic} - 1\ny\n" for topic in topics * 200).encode() + b"PING\n")
                assert [wire.line() for _ in range(401)] == [b"OK %d" % (at // 2) for at in range(400)] + [b"PONG"]
                for topic in topics:
                    assert wire.ask(b"DESCRIBE %b\n" % topic.encode()).startswith(b"JSON")
                    assert json.loads(wire.line())["topic"] == topic
                    assert wire.ask(f"SUB {topic} c start=earliest window=200\n".encode()) == b"OK 1"
                    assert [wire.message() for _ in range(200)] == [(number, 1, b"y") for number in range(200)]
                    assert wire.ask(f"ACK {topic} c 0-199 sync=1\n".encode()) == b"OK 200"
                    assert wire.ask(f"UNSUB {topic} c\n".encode()) == b"OK 0"
                for topic in topics:
                    assert wire.ask(f"SEEK {topic} c earliest\n".encode()) == b"OK 0"
                    assert wire.ask(f"FORGET {topic} c\n".encode()) == b"OK 0"
                    assert wire.ask(f"DELETE {topic}\n".encode()) == b"OK 200"


def test_commands_that_are_piped_in_are_all_carried_out(tmp_path: Path) -> None:
    """With ``printf … | nc`` the end of the input comes together with the commands."""
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        there = topic_of(1, 2)
        with workers.wire(0) as wire:
            wire.send(f"PUB {there} - 1\nx\nPULL {there} c 1\nPULL {there} c 1 wait=50000\nPING\n".encode())
            wire.socket.shutdown(socket.SHUT_WR)
            assert wire.line() == b"OK 0"
            assert wire.message()[2] == b"x"
            assert [wire.line() for _ in range(3)] == [b"OK 1", b"OK 0", b"PONG"], "the wait ends with the input"
            assert wire.at_end()
        with workers.wire(0) as wire:
            wire.send(f"TOPICS\nPUB {there} - 1\ny\nPULL > c 5\nPULL > c 5 wait=50000\n".encode())
            wire.socket.shutdown(socket.SHUT_WR)
            assert wire.line().startswith(b"JSON")
            wire.line()
            assert wire.line() == b"OK 1"
            assert pulled(wire) == [there], "the second worker is asked after the end of the input"
            assert wire.line() == b"OK 0"
            assert wire.at_end()


def test_many_pulls_of_a_pattern_at_once_need_few_connections(tmp_path: Path) -> None:
    """Found: each waiting PULL had a connection to every worker, so one client used all that ``--max-connections`` allows
    there."""
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        with workers.wire(0) as wire:
            wire.send(b"PULL none.* c 1 wait=1\n" * 120 + b"PING\n")
            assert [wire.line() for _ in range(121)] == [b"OK 0"] * 120 + [b"PONG"]


def test_a_worker_that_is_killed_ends_the_connections_that_wait_for_it(tmp_path: Path) -> None:
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        here, there = topic_of(0, 2), topic_of(1, 2)
        with workers.wire(0) as listens, workers.wire(0) as speaks, workers.wire(0) as other:
            assert publish(speaks, there, "x") == b"OK 0"
            assert publish(other, here, "x") == b"OK 0"
            assert listens.ask(f"SUB {there} c start=latest\n".encode()) == b"OK 1"
            os.kill(workers.pids[1], signal.SIGKILL)
            assert listens.at_end()
            workers.ready(1)
            assert publish(speaks, there, "y") == b"OK 1", "it had nothing open there"
            assert publish(other, here, "y") == b"OK 1"


def pulled(wire: Wire) -> list[str]:
    """Return the topics of the messages of a PULL that was sent."""
    seen: list[str] = []
    while not (line := wire.line()).startswith(b"OK"):
        assert line.startswith(b"MSG"), line
        seen.append(line.split()[1].decode())
        wire.read(int(line.split()[6]) + 1)
    assert int(line.split()[1]) == len(seen)
    return seen


def test_lists_and_patterns_are_those_of_all_workers(tmp_path: Path) -> None:
    with serving(tmp_path / "data", 3) as workers:
        workers.ready(3)
        topics = [f"orders.{name}" for name in "abcdefghi"]
        with workers.wire(0) as wire, workers.wire(1) as follows:
            follows.send(b"CLUSTER moved=1\n")
            assert follows.line().startswith(b"JSON")
            follows.line()
            for topic in topics:
                assert publish(wire, topic, "x") == b"OK 0"
            for one in (wire, follows):
                assert one.ask(b"TOPICS\n").startswith(b"JSON")
                assert [found["topic"] for found in json.loads(one.line())] == topics
                assert one.ask(b"TOPICS orders.c\n").startswith(b"JSON")
                assert [found["topic"] for found in json.loads(one.line())] == ["orders.c"]
                assert one.ask(b"STATS\n").startswith(b"JSON")
                stats = json.loads(one.line())
                assert stats["publish_total"] == len(topics)
                assert [found["topic"] for found in stats["topics"]] == topics
            for name, one in (("w", wire), ("f", follows)):
                assert one.ask(f"SUB orders.* {name} start=earliest\n".encode()) == b"OK 9", "topics of all"
                seen = {}
                for _ in topics:
                    line = one.line().split()
                    seen[line[1].decode()] = int(line[2])
                    one.line()
                assert seen == dict.fromkeys(topics, 0)
                assert one.ask(b"SUB orders.c other\n").startswith(b"ERR ALREADY_SUBSCRIBED")
                for topic in topics:
                    assert one.ask(f"ACK {topic} {name} 0 sync=1\n".encode()) == b"OK 1"
            assert wire.ask(b"UNSUB orders.* w\n") == b"OK 0"
            taken: list[str] = []
            for workers_left in (3, 2, 1):
                wire.send(b"PULL orders.* p 9\n")
                taken += (one_workers := pulled(wire))
                assert 0 < len(one_workers) <= 9 - (workers_left - 1), "those of one worker, and each has some"
            assert sorted(taken) == topics
            assert wire.ask(b"PULL orders.* p 9\n") == b"OK 0"
            wire.send(b"PULL orders.* p 9 wait=60000\n")
            with workers.wire(2) as other:
                for topic in topics:
                    assert publish(other, topic, "y") == b"OK 1"
            taken = pulled(wire)
            assert taken, "it waited until something came"
            assert set(taken) <= set(topics)
            assert wire.ask(b"UNSUB orders.* w\n").startswith(b"ERR NOT_SUBSCRIBED")


def test_a_supervisor_that_follows_a_killed_one_at_once_waits_for_its_workers(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The killed supervisor's workers shut down gracefully, here until a delivery is acked, and hold directory and addresses
    until then."""
    topic, listen = topic_of(1, 2), ("--listen", f"127.0.0.1:{reserved_port(request, 3)}")
    with serving(tmp_path / "data", 2, *listen, "--shutdown-timeout", "4s") as workers:
        workers.ready(2)
        with workers.wire(1) as wire:
            assert publish(wire, topic, "kept") == b"OK 0"
            assert wire.ask(f"SUB {topic} c start=earliest\n".encode()) == b"OK 1"
            assert wire.message() == (0, 1, b"kept")
            workers.process.kill()
            assert wire.line() == f"CLOSED {topic} c SHUTTING_DOWN".encode()
            with serving(tmp_path / "data", 2, *listen) as following:
                following.ready(2)
                with following.wire(0) as other:
                    assert publish(other, topic, "next") == b"OK 1"
                assert following.stop() == 0


def test_two_supervisors_of_one_directory(tmp_path: Path) -> None:
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        ended = run("serve", "--data-dir", str(tmp_path / "data"), "--workers", "2", "--listen", "127.0.0.1:0")
        assert ended.returncode == 2
        assert f"is in use by process {workers.process.pid}" in ended.stderr


@pytest.mark.parametrize("killed", ["worker", "supervisor"])
def test_a_kill_while_it_starts(tmp_path: Path, killed: str) -> None:
    """Whichever process is killed at any moment: the next start serves what was acknowledged."""
    topics = [topic_of(worker, 2) for worker in (0, 1)]
    for turn in range(3):
        with serving(tmp_path / "data", 2) as workers:
            workers.ready(1)  # the other one may be anywhere
            (ready,) = workers.pids
            if killed == "worker":
                os.kill(workers.pids[ready], signal.SIGKILL)
                workers.ready(2)
            else:
                workers.process.kill()
                workers.join()
                continue
            with workers.wire(0) as wire:
                for topic in topics:
                    assert publish(wire, topic, "x") == b"OK %d" % turn
            assert workers.stop() == 0
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        with workers.wire(0) as wire:
            for topic in topics:
                assert publish(wire, topic, "x") == (b"OK 3" if killed == "worker" else b"OK 0")


def asked(port: int) -> int:
    """Connect. Returns: the worker that accepted the connection."""
    with Wire(port) as wire:
        assert wire.ask(b"CLUSTER\n").startswith(b"JSON")
        return int(json.loads(wire.line())["worker"])


def test_any_worker_takes_a_connection_at_the_address_that_was_given(tmp_path: Path) -> None:
    """A worker that is stopped or dead delays no client, nor connections that wait to be accepted."""
    with serving(tmp_path / "data", 3) as workers:
        workers.ready(3)
        for only in (0, 1, 2):
            others = [workers.pids[worker] for worker in (0, 1, 2) if worker != only]
            for pid in others:
                os.kill(pid, signal.SIGSTOP)
            try:
                assert {asked(workers.port) for _ in range(5)} == {only}
            finally:
                for pid in others:
                    os.kill(pid, signal.SIGCONT)
        for worker in (0, 1, 2):
            for pid in workers.pids.values():
                os.kill(pid, signal.SIGSTOP)
            waiting = [Wire(workers.port) for _ in range(8)]  # in the queue: no worker takes them yet
            os.kill(workers.pids[worker], signal.SIGKILL)
            for other in {0, 1, 2} - {worker}:
                os.kill(workers.pids[other], signal.SIGCONT)
            for wire in waiting:
                with wire:
                    assert wire.ask(b"PING\n") == b"PONG"
            workers.ready(1)
        assert workers.stop() == 0


def test_a_client_that_connects_while_workers_are_killed_is_served_at_once(tmp_path: Path) -> None:
    """Each connection is answered, or was with the killed worker; none waits for its successor."""
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        for turn in range(6):
            killed = turn % 2
            os.kill(workers.pids[killed], signal.SIGKILL)
            assert asked(workers.port) == 1 - killed, "before the other one is replaced, as that takes a tenth of a second"
            workers.ready(1)
        assert workers.stop() == 0


def test_a_data_directory_with_a_long_path(tmp_path: Path) -> None:
    """The path is longer than the address of a Unix socket may be."""
    directory = tmp_path / ("d" * 100) / "data"
    directory.parent.mkdir()
    with serving(directory, 2) as workers:
        workers.ready(2)
        with workers.wire(0) as wire:
            assert publish(wire, topic_of(1, 2), "x") == b"OK 0"
        assert workers.stop() == 0
        assert sorted(path.name for path in (directory / "workers").iterdir()) == ["0", "1"], "no socket is left"


async def test_with_tls_alone_every_topic_is_reached(tmp_path: Path) -> None:
    options = ("--tls-listen", "127.0.0.1:0", "--https", "127.0.0.1:0", "--tls-cert", CERT, "--tls-key", KEY)
    context = client_context()
    with serving(tmp_path / "data", 2, *options) as workers:
        workers.ready(2)
        words = workers.addresses()[0]
        url = next(word for word in words if word.startswith("toymqs://"))
        topics = [f"t{number}" for number in range(6)]
        async with toymq.connect(url, ssl=context) as mq:
            for topic in topics:
                assert (await mq.pub(topic, b"x")).msg_id == 0
                async with mq.sub(topic, "c", start="earliest") as messages:
                    assert (await messages.next(60)).payload == b"x"
            assert {link.home.tls for link in mq._links if link.home is not None} == {True}, "nothing in the clear"
        with Wire(int(url.rpartition(":")[2]), context) as wire:
            for topic in topics:
                assert publish(wire, topic, "y") == b"OK 1"
        https = next(word for word in words if word.startswith("https://"))
        for topic in topics:
            request = urllib.request.Request(f"{https}v1/topics/{topic}/messages", data=b"z", method="POST")
            answer = await asyncio.to_thread(urllib.request.urlopen, request, timeout=60, context=context)
            with answer:
                assert json.loads(answer.read()) == {"id": 2, "duplicate": False}
        assert workers.stop() == 0


def test_another_number_of_workers_serves_the_same_topics(tmp_path: Path) -> None:
    """From one process to three and back: messages, settings and consumers' acks are kept."""
    directory = str(tmp_path / "data")
    topics = [f"t{number}" for number in range(6)]
    for turn, (number, options) in enumerate([(1, ()), (3, ("--workers", "3")), (2, ("--workers", "2")), (1, ())]):
        changed = run("workers", directory, "--set", str(number)) if turn else None
        assert changed is None or changed.returncode == 0, changed
        process = subprocess.Popen(
            [*COMMAND, "serve", "--listen", "127.0.0.1:0", "--data-dir", directory, "--min-free-bytes", "0", *options],
            env={**environment(), "TOYMQ_CONFIG": os.devnull}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        with process.stdout:
            lines = [process.stdout.readline() for _ in range(number)]
            found = re.search(r"127\.0\.0\.1:(\d+)", lines[0])
            assert found is not None, lines
            with Wire(int(found[1])) as wire:
                for topic in topics:
                    if not turn:
                        assert wire.ask(f"CREATE {topic} visibility=77000\n".encode()) == b"OK 0"
                    assert publish(wire, topic, "x") == b"OK %d" % turn
                    wire.send(f"PULL {topic} c 9\n".encode())
                    assert wire.message() == (turn, 1, b"x"), "what was acked does not come again"
                    assert wire.line() == b"OK 1"
                    assert wire.ask(f"ACK {topic} c {turn} sync=1\n".encode()) == b"OK 1"
                    assert wire.ask(f"CONFIG {topic}\n".encode()).startswith(b"JSON")
                    assert json.loads(wire.line()) == {"visibility": 77000}
            process.terminate()
            assert process.wait(60) == 0
    assert "1 worker" in run("workers", directory).stdout
