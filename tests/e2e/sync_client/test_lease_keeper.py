"""``sub(auto_extend=True)`` of the blocking client: leases are renewed from a thread, over a connection of its own."""

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path

import pytest

from tests.support.broker_process import TIMEOUT_S, BrokerProcess, environment
from tests.support.interruptions import Interrupter, TimeLimit
from tests.support.shares import one_in
from toymq import ClientClosed, ConfigError, ConnectFailed, sync
from toymq.sync import Client
from toymq_py.errors import TooManyConnections

LEASE_S = 0.4
PLACES_MIN = 99
NOT_CLOSED = """
import sys
from toymq import sync
mq = sync.connect(sys.argv[1])
mq.pub("left", b"x")
messages = mq.sub("left", "c", auto_extend=True)
print(messages.next(5).attempt)
"""
FORKED = """
import os, sys
from tests.support.interruptions import Interrupter, TimeLimit
from tests.support.shares import one_in
from toymq import ClientClosed, sync
mq = sync.connect(sys.argv[1])
mq.pub("forked", b"x")
messages = mq.sub("forked", "c", visibility=0.4, auto_extend=True)
message = messages.next(5)
child = os.fork()
if not child:
    said = 0
    acks = (message.ack, lambda: message.ack(sync=True))
    for call in (mq.ping, messages.next, *acks, lambda: mq.sub("t", "c", auto_extend=True)):
        try:
            call()
        except ClientClosed as error:
            said += "fork" in str(error)
    messages.close()
    mq.close()
    sys.exit(said)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
with sync.connect(sys.argv[1]) as other:
    print(other.pull("forked", "c", wait=1.2))
message.ack(sync=True)
print(mq.describe("forked")["consumers"][0]["backlog"])
"""


def renewing() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "toymq-leases"]


def test_leases_are_renewed_while_a_handler_blocks(broker: BrokerProcess, client: Client) -> None:
    """The leases are those of messages that were handed out, that wait for the next iteration, whose ack is not sent yet, and
    that lie in the socket."""
    list(client.pub_many("slow", [b"handled", b"acked", b"waiting"]))
    with client.sub("slow", "c", mode="shared", visibility=LEASE_S, auto_extend=True) as messages:
        messages.next(5)
        messages.next(5).ack()
        with sync.connect(f"127.0.0.1:{broker.port}") as other:
            other.pub("slow", b"in the socket")
            assert other.pull("slow", "c", 4, wait=LEASE_S * 4) == [], "no other gets any of them"
        for msg_id in (2, 3):
            message = messages.next(5)
            assert (message.id, message.attempt) == (msg_id, 1)
            message.ack()
    (again,) = client.pull("slow", "c", wait=5)
    assert (again.id, again.attempt) == (0, 2), "the subscription is over, and so are its leases"


def test_what_is_settled_is_not_renewed(client: Client) -> None:
    client.pub("settled", b"x")
    messages = client.sub("settled", "c", visibility=LEASE_S, auto_extend=True)
    messages.next(5).nack(0)
    assert messages.next(5).attempt == 2
    client.drain(5)
    (message,) = client.pull("settled", "c", visibility=LEASE_S)
    assert (message.attempt, len(renewing())) == (3, 1)
    (again,) = client.pull("settled", "c", wait=5)
    assert again.attempt == 4, "drained, and not renewed"


def test_all_that_came_is_read_before_a_handler_has_the_next(
    broker: BrokerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client does not know the ids of messages that are still in the kernel's buffer, so it could not renew their
    leases."""
    monkeypatch.setattr("toymq.sync.link.RECEIVE_BYTES", 320)  # two messages and a bit
    list(client.pub_many("pieces", [bytes(100)] * 3))
    with client.sub("pieces", "c", mode="shared", visibility=LEASE_S, auto_extend=True) as messages:
        assert [messages.next(5).id for _ in range(2)] == [0, 1]
        with sync.connect(f"127.0.0.1:{broker.port}") as other:
            assert other.pull("pieces", "c", wait=LEASE_S * 4) == []


def test_two_subscriptions_have_one_thread_and_no_thread_is_left(broker: BrokerProcess) -> None:
    client = sync.connect(f"127.0.0.1:{broker.port}")
    assert renewing() == []
    with client.sub("a", "c", auto_extend=True), client.sub("b", "c", auto_extend=True):
        assert len(renewing()) == 1
    client.close()
    assert renewing() == []
    with pytest.raises(ClientClosed):
        client.sub("a", "c", auto_extend=True)


@pytest.mark.parametrize("masked", [False, True])
def test_an_interruption_once_the_thread_runs_leaves_none_behind_the_client(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, masked: bool
) -> None:
    """Found: the thread, and its connection, outlived the client."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        error: BaseException = TimeLimit()
        if masked:  # as Python's own start does
            of_python = KeyError(thread)
            of_python.__context__, error = error, of_python
        raise error

    with sync.connect(f"127.0.0.1:{broker.port}") as client:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", interrupted)
            with pytest.raises(TimeLimit):
                client.sub("a", "interrupted", auto_extend=True)
        client.sub("a", "again", auto_extend=True)
        assert len(renewing()) == 1
    assert renewing() == []


@one_in(13)
def test_an_interrupted_subscription_leaves_no_thread_behind_its_client(broker: BrokerProcess, share: int) -> None:
    """No connection is left either, and the same client still renews leases with one thread."""
    for at in count(step=share):
        interrupter = Interrupter(at)
        client = sync.connect(f"127.0.0.1:{broker.port}")
        with interrupter:
            client.sub("a", "interrupted", mode="shared", auto_extend=True)
        if at % 2:
            client.sub("a", "again", mode="shared", auto_extend=True)
            assert len(renewing()) == 1, interrupter.raised_in
        client.close()
        assert renewing() == [], interrupter.raised_in
        if not interrupter.raised_in:
            break
    assert at > PLACES_MIN, f"only {at} places: it was not traced"


def test_a_client_that_nobody_closed_leaves_no_thread(broker: BrokerProcess) -> None:
    client = sync.connect(f"127.0.0.1:{broker.port}")
    client.sub("a", "dropped", auto_extend=True)
    (thread,) = renewing()
    client._link._drop_socket()  # else that is a ResourceWarning
    del client
    gc.collect()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize(("program", "said"), [(NOT_CLOSED, "1\n"), (FORKED, "5\n[]\n0\n")], ids=["exit", "fork"])
def test_a_program_that_ends_or_forks(broker: BrokerProcess, program: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, f"127.0.0.1:{broker.port}"],
        env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == (said, "", 0)


def test_where_there_is_no_thread_it_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(ConfigError, match=r"auto_extend needs a thread, .+: can't start new thread"):
            client.sub("none", "c", auto_extend=True)
    assert client.topics("none") == [], "nothing was subscribed"
    client.sub("none", "c", auto_extend=True).close()


def test_where_there_is_no_connection_it_is_refused(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "d", "--max-connections", "1") as broker,
        sync.connect(f"127.0.0.1:{broker.port}", timeout_s=0.2) as client,
    ):
        with pytest.raises(TooManyConnections):
            client.sub("t", "c", auto_extend=True)
        assert renewing() == []
        assert client.topics() == [], "nothing was subscribed"
        broker.kill()
        with pytest.raises(ConnectFailed, match="no broker at"):
            client.sub("t", "c", auto_extend=True)


def test_an_outage_is_told_once_and_renewing_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The outage is reported in the thread that the client belongs to."""
    told: list[threading.Thread] = []
    with BrokerProcess(tmp_path / "d") as broker:
        url = f"127.0.0.1:{broker.port}"
        with (
            sync.connect(url, on_event=lambda _: told.append(threading.current_thread()), backoff_max_s=0.1) as mq,
            mq.sub("t", "c", mode="shared", visibility=LEASE_S, auto_extend=True) as messages,
        ):
            mq.pub("t", b"x")
            messages.next(5)
            broker.kill()
            broker.start()
            mq.pub("t", b"y")
            assert messages.next(5).id == 1
            with sync.connect(url) as other:
                assert other.pull("t", "c", 2, wait=LEASE_S * 4) == [], "both are renewed, over a new connection"
    assert [record.message.partition(": ")[2] for record in caplog.records if record.levelno >= logging.WARNING] == [
        "the broker closed the connection; reconnecting"
    ]
    assert told == [threading.main_thread()] * 3, "connected, disconnected, connected"


def test_closing_does_not_wait_for_a_broker_that_hangs(
    client: Client, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toymq.link.GOODBYE_S", 0.02)
    monkeypatch.setattr("toymq.sync.client.GOODBYE_S", 0.02)
    client.sub("hangs", "c", auto_extend=True)
    (thread,) = renewing()
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        client.close()
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
