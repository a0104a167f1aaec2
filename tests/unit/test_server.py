"""The server apart from its sessions: it binds, and runs the broker's timers."""

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from tests.support.http_rig import listening
from tests.support.sim_served import SimClient, SimServed
from toymq_py.clock import SystemClock
from toymq_py.net import dead_peers
from toymq_py.net.dead_peers import DeadPeers, TcpState
from toymq_py.server import Server


def attempts(client: SimClient) -> list[bytes]:
    """Return topic, id and attempt of each delivery so far."""
    return [b" ".join(line.split()[1:4]) for line in client.lines() if line.startswith(b"MSG ")]


def test_what_was_scheduled_before_a_restart_comes_at_its_time() -> None:
    """Found by the simulation, queue seed 7: a delayed message never came, since its deadline was announced before the server
    listened."""
    with SimServed() as served:
        publisher = served.client(b"PUB t - 1 delay=500\na\n")
        served.advance(0.1)
        assert publisher.lines() == [b"OK 0"]
        served.restart()
        subscriber = served.client(b"SUB t c\n")
        served.advance(0.2)
        assert attempts(subscriber) == [], "not before its time"
        served.advance(0.3)
        assert attempts(subscriber) == [b"t 0 1"]


def test_a_schedule_that_was_recovered_does_not_stop_visibility_timeouts() -> None:
    """Found: visibility timeouts were later than that unannounced deadline, so they were not announced either."""
    with SimServed(visibility_ms=30_000) as served:
        served.client(b"PUB t - 1 delay=3600000\na\nPUB t - 1\nb\n")
        served.advance(0.1)
        served.restart()
        subscriber = served.client(b"SUB t c\n")
        served.advance(0.1)
        assert attempts(subscriber) == [b"t 1 1"]
        served.advance(30.0)
        assert attempts(subscriber) == [b"t 1 1", b"t 1 2"]


def test_an_address_that_a_name_has_twice_is_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: with two lines for localhost in /etc/hosts the second socket could not listen."""
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _host, *rest, **words: 2 * resolve("127.0.0.1", *rest, **words))
    (listener,) = Server.bind("localhost", 0)
    listener.close()


async def test_clients_of_each_listener_that_are_gone_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [TcpState(probes=0, unacked=0, sent_ms=0, heard_ms=60_000)]
    monkeypatch.setattr(dead_peers, "PATIENCE_S", 0.0)
    monkeypatch.setattr(dead_peers, "ROUND_S", 0.01)
    monkeypatch.setattr(dead_peers, "tcp_state", lambda transport: states[-1])
    async with listening(tmp_path) as rig:
        ports = (rig.served.port, rig.port)
        clients = [await asyncio.open_connection("127.0.0.1", port) for port in ports]
        connections = rig.broker.quotas.open_connections
        peers = DeadPeers(connections, asyncio.get_running_loop(), SystemClock())
        peers.start()
        await rig.until(lambda: len(list(connections)) == len(ports))
        clients[0][1].write(b"PING\n")
        assert await clients[0][0].readline() == b"PONG\n", "it is idle, and there"
        states.append(TcpState(probes=0, unacked=1, sent_ms=0, heard_ms=60_000))
        for reader, writer in clients:
            with contextlib.suppress(ConnectionResetError):
                assert not await asyncio.wait_for(reader.read(), 30)
            writer.close()
        await rig.until(lambda: not list(connections))
        peers.stop()


CHAINS = {
    "PURGE": b"PUB t - 1\nx\nPURGE t\n",
    "DELETE": b"PUB t - 1\nx\nDELETE t\n",
    "CONFIG": b"CONFIG t ttl=5\nCONFIG t ttl=6\n",
    "CREATE": b"CREATE t\n",
    "CREATE of many": b"CREATE t.%d\n",
    "REDRIVE": b"REDRIVE d.dlq\n",
    "SEEK": b"SEEK t c earliest\nSEEK t c latest\n",
    "FORGET": b"SEEK t c 0\nFORGET t c\n",
    "ACK sync": b"ACK t c 0 sync=1\n",
    "PUB": b"PUB t - 1\nx\n",
    "FETCH": b"FETCH t 1 1 wait=600000\n",
    "PULL": b"PULL t w 1 wait=600000\n",
    "PULL of a pattern": b"PULL > w 1 wait=600000\n",
    "SUB": b"SUB t.%d c\n",
    "STATS": b"STATS\n",
}


@pytest.mark.parametrize("client", ["gone", "does not read", "reads"])
@pytest.mark.parametrize("chain", CHAINS)
def test_a_shutdown_keeps_its_deadline_whatever_a_client_has_pipelined(chain: str, client: str) -> None:
    """Found by an attack: 20,000 PURGEs of one client kept a broker running for 10 s, and for 40 s and more if the client
    stayed."""
    with SimServed() as served:
        served.client(b"CREATE d max_attempts=1\nPUB d - 1\nx\nPULL d c 1\nNACK d c 0 dead=1\nPUB t - 1\nx\n")
        served.advance(0.2)
        piped = CHAINS[chain]
        data = b"".join(piped % n for n in range(200)) if b"%d" in piped else piped * 200
        hostile = served.client(data)
        if client == "does not read":
            hostile.transport.pause_reading()
        served.advance(0.01)
        if client == "gone":
            hostile.close()
        took_s = served.stop()
        assert took_s <= 0.1, "the deadline of this broker (--shutdown-timeout)"


REFUSED = (
    "CREATE n", "CONFIG t ttl=5", "PURGE t", "DELETE t", "FORGET t c", "SEEK t c latest", "STATS", "TOPICS", "FETCH t 0 1",
    "OFFSETS t", "DESCRIBE t", "PULL t c 1", "SUB t d", "REDRIVE d.dlq", "PUB t - 1\nx",
)  # fmt: skip


def test_after_the_signal_acks_and_their_like_are_executed_and_nothing_else() -> None:
    with SimServed() as served:
        owing = {line: served.client(b"PUB o%d - 1\nx\nSUB o%d c\n" % (n, n)) for n, line in enumerate((*REFUSED, "ACK"))}
        served.client(b"PUB t - 1\nx\nSEEK t c 0\n")
        consumer = served.client(b"PUB u - 1\nx\nPUB u - 1\ny\nPUB u - 1\nz\nSUB u c\n")
        served.advance(0.2)
        assert len(attempts(consumer)) == 3
        assert all(len(attempts(client)) == 1 for client in owing.values()), "each owes an ack, and stays connected"
        served.server.stop()
        served.advance(0.005)
        sent = {line: len(client.received) for line, client in owing.items()}
        for line, client in owing.items():
            client.send(line.encode() + b"\nPING\n")
        before = len(consumer.received)
        consumer.send(b"PING\nTOUCH u c 0\nACK u c 0\nNACK u c 2\nACK u c 1 sync=1\nACK u c 2\n")
        served.advance(0.05)
        for line in REFUSED:
            (answer,) = owing[line].received[sent[line] :].splitlines()
            assert answer.startswith(b"ERR SHUTTING_DOWN "), f"{line}: one reply, which ends the connection"
        assert consumer.received[before:].splitlines() == [b"PONG", b"OK 0", b"OK 1", b"OK 0", b"OK 1", b"OK 1"], (
            "its leases are over (TOUCH, NACK), its acks are taken"
        )
        topic = served.broker.topic("t")
        assert (topic.first_id, topic.next_id, list(topic.channels), topic.settings.ttl) == (0, 1, ["c"], None)
        assert "n" not in served.broker.topics


def test_a_change_that_waits_behind_others_is_refused_at_the_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    with SimServed() as served:
        served.client(b"CREATE t\n")
        served.advance(0.1)
        clients = [served.client() for n in range(20)]
        served.advance(0.1)
        offload, held = served.threads.offload, []
        monkeypatch.setattr(served.threads, "offload", lambda job, done: held.append(lambda: offload(job, done)))
        for n, client in enumerate(clients):
            client.send(b"CONFIG t ttl=%d\n" % (n + 1))
        served.advance(0.01)
        assert len(held) == 1, "one change at a time"
        monkeypatch.undo()
        served.loop.call_later(0.01, held[0])
        served.stop()
        told = sorted(client.received[:17] for client in clients)
        assert told.pop().startswith(b"JSON "), "what was begun is finished"
        assert told == [b"ERR SHUTTING_DOWN"] * 19


def test_a_shutdown_whose_disk_is_too_slow_ends_at_its_deadline_and_loses_no_ok(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SimServed() as served:
        publisher = served.client(b"".join(b"PUB t.%d - 1\nx\n" % n for n in range(20)))
        served.advance(0.1)
        assert publisher.received.count(b"OK 0\n") == 20
        offload = served.threads.offload
        monkeypatch.setattr(served.threads, "offload", lambda job, done: served.loop.call_later(9, offload, job, done))
        late = served.client(b"".join(b"PUB u.%d - %d\n%b\n" % (n, 99_999, b"x" * 99_999) for n in range(20)))
        served.advance(0.01)
        assert served.stop() <= 0.1
        assert (late.received, late.lost) == (b"", True)
        assert " topics have commits at the disk" in caplog.text
        assert "the shutdown ends at its deadline (--shutdown-timeout): " in caplog.text
        served.restart()
        assert [served.broker.topic(f"t.{n}").next_id for n in range(20)] == [1] * 20
