"""The blocking client against a server that follows a script."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.broker_process import TIMEOUT_S, BrokerProcess
from toymq import ConnectFailed, RequestTimeout, sync
from toymq.sync import Client, link
from toymq_py.errors import (
    AuthFailed,
    CommandFailed,
    ProtocolViolation,
    ShuttingDown,
)

Script = Callable[[socket.socket], None]


@contextmanager
def scripted(script: Script) -> Iterator[str]:
    """Run a server that follows a script for one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            connection, _ = listener.accept()
            connection.settimeout(10)
            with connection:
                script(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            thread.join(10)
            assert not thread.is_alive()


GREETING = b"HELLO 1 server=fake/1 max_payload=2097152\n"


def answering(*answers: bytes) -> Script:
    def script(connection: socket.socket) -> None:
        for answer in answers:
            connection.recv(65_536)
            connection.sendall(answer)

    return script


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", ProtocolViolation, "this port speaks HTTP"),
        (b"220 mail\r\n", ProtocolViolation, "not a toymq broker"),
        (b"OK 1\n", ProtocolViolation, "answered HELLO with OkReply"),
        (b"ERR NEW_CODE of a later version\n", CommandFailed, "NEW_CODE"),
        (b"ERR SHUTTING_DOWN bye\n", ShuttingDown, "bye"),
        (b"", ConnectFailed, "no greeting from the broker: the broker closed the connection"),
    ],
)
def test_a_server_that_is_no_broker(answer: bytes, error: type[Exception], text: str) -> None:
    with scripted(answering(answer)) as url, pytest.raises(error, match=text):
        sync.connect(url)


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (b"OK 1\n", ProtocolViolation, "answered PING with OkReply"),
        (b"ERR NEW_CODE of a later version\n", CommandFailed, "NEW_CODE"),
    ],
)
def test_an_answer_of_another_kind(answer: bytes, error: type[Exception], text: str) -> None:
    with scripted(answering(GREETING, answer)) as url, sync.connect(url) as client, pytest.raises(error, match=text):
        client.ping()


def test_what_the_broker_said_before_it_went_is_read() -> None:
    def script(connection: socket.socket) -> None:
        connection.recv(100)
        connection.sendall(GREETING)
        connection.recv(100)
        connection.sendall(b"OK 7\nERR SHUTTING_DOWN bye\n")

    with scripted(script) as url, sync.connect(url, timeout_s=0.2) as client:
        assert client.pub("t", b"x").msg_id == 7
        with pytest.raises(RequestTimeout, match=r"waited for the OK of a publish to t \(.+\)"):
            client.pub("t", b"y")
        client.close()


def test_a_token_is_sent_first_and_a_refusal_is_the_callers() -> None:
    heard: list[bytes] = []

    def refuse(connection: socket.socket) -> None:
        heard.append(connection.recv(100))
        connection.sendall(b"ERR AUTH_FAILED no\n")

    with scripted(refuse) as url, pytest.raises(AuthFailed):
        sync.connect(f"toymq://s3cret@{url}")
    assert heard == [b"HELLO 1 auth=s3cret\n"]
    script = answering(b"HELLO 1 server=x/1 max_payload=5\n", b"PONG\n")
    with scripted(script) as url, sync.connect(f"toymq://s3cret@{url}") as client:
        client.ping()


YEARS_S = 3650 * 86_400.0


def test_a_wait_may_be_longer_than_poll_and_sockets_take(broker: BrokerProcess) -> None:
    """Poll and sockets count milliseconds in an int: 24.8 days at most. The client allows ten years."""
    url = f"toymq://127.0.0.1:{broker.port}"
    with sync.connect(url, timeout_s=YEARS_S, connect_timeout_s=YEARS_S, wait_s=YEARS_S, backoff_max_s=YEARS_S) as client:
        client.pub("waits", b"x")
        client.pub("waits", b"y")
        (pulled,) = client.pull("waits", "c", wait=30 * 86_400)
        pulled.ack()
        with client.sub("waits", "c") as messages:
            assert messages.next(timeout=30 * 86_400).payload == b"y"


def test_a_wait_of_several_steps_ends_at_its_time(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "WAIT_MAX_S", 0.01)
    with client.sub("steps", "c") as messages, pytest.raises(RequestTimeout, match=r"no message within 0\.05 s"):
        messages.next(timeout=0.05)
    client.pub("steps", b"x")
    assert [message.payload for message in client.pull("steps", "c", wait=5)] == [b"x"]


def test_a_connection_on_which_nothing_is_answered_is_left() -> None:
    """Found: after one answer was lost in the broker every later call waited behind it, and the client never reconnected. An
    answer that comes too late is not taken for another call's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            silent, _ = listener.accept()
            silent.recv(65_536)
            silent.sendall(GREETING)
            silent.recv(65_536)
            connection, _ = listener.accept()
            with silent, suppress(OSError):
                silent.sendall(b"ERR INTERNAL late\n")
            with connection:
                for answer in (GREETING, b"PONG\n"):
                    connection.recv(65_536)
                    connection.sendall(answer)
                while connection.recv(65_536):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        with sync.connect(f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=1) as mq:
            with pytest.raises(RequestTimeout, match="waited for the reply to PING") as caught:
                mq.ping()
            assert isinstance(caught.value, TimeoutError)
            mq.ping()
        thread.join(10)
        assert not thread.is_alive()


def test_the_first_call_behind_a_pause_in_which_the_broker_went_goes_on(tmp_path: Path) -> None:
    """Found: a seek, a purge and other calls that are never repeated raised ConnectionLost, "the outcome is unknown", although
    the connection had been closed before they were sent."""
    calls: list[Callable[[sync.Client], object]] = [
        lambda mq: mq.seek("t", "c", "earliest"), lambda mq: mq.nack("t", "c", [(0, 0)]), lambda mq: mq.ping(),
        lambda mq: mq.config("t", {"ttl": 60_000}), lambda mq: mq.pub("t", b"x"), lambda mq: mq.forget("t", "other"),
        lambda mq: mq.purge("t"), lambda mq: mq.delete("t"),
    ]  # fmt: skip
    with BrokerProcess(tmp_path / "d", "--shutdown-timeout", "1s") as broker:  # it waits for an ack of what is leased
        clients = [sync.connect(f"toymq://127.0.0.1:{broker.port}") for _ in calls]
        for each in clients:
            each.ping()
        with clients[0].sub("leased", "c", visibility=1) as messages:
            for topic in ("t", "leased"):
                clients[0].pub(topic, b"a")
            clients[0].pull("t", "c", 1)
            clients[0].seek("t", "other", "latest", create=True)
            leased = messages.next(timeout=TIMEOUT_S)
            broker.restart(kill=False)
            assert leased.extend() is False, "its lease ended with the connection"
            again = messages.next(timeout=TIMEOUT_S)
            assert (again.id, again.attempt) == (leased.id, 1), "it was taken for the one that the handler holds"
            again.ack()
        for call, client in zip(calls, clients, strict=True):
            call(client)
            client.close()


def test_what_is_read_behind_a_pause_costs_no_call_its_answer(client: sync.Client) -> None:
    """Deliveries that arrived during a pause are read before the next call, and kept."""
    with client.sub("behind", "c") as messages:
        list(client.pub_many("behind", (b"%d" % n for n in range(100))))
        time.sleep(2 * link.PAUSE_S)
        assert client.ping() > 0
        assert [messages.next(timeout=TIMEOUT_S).payload for _ in range(100)] == [b"%d" % n for n in range(100)]
