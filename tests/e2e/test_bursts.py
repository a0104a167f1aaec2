"""What many connections send at once costs the memory that they may hold, not what their sockets have. ADR 0236."""

import re
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.broker_process import BrokerProcess, Wire

CLIENTS, MIB = 600, 1024 * 1024
HELD = 2 * MIB
HEAD = {
    "tcp": b"PUB t - 1000000\n",
    "http": b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n",
}
PART = bytes(200 * 1024)
"""Of each body; a read of uvloop would bring it whole."""


@pytest.mark.parametrize("protocol", ["tcp", "http"])
def test_bodies_of_many_clients_at_once_are_not_all_read(tmp_path: Path, protocol: str) -> None:
    """Found by a trial: two thousand connections had 457 MB in their sockets when the broker came to read them, and it was
    killed in a container of 192 MiB."""
    with ExitStack() as stack:
        broker = stack.enter_context(BrokerProcess(tmp_path / "d", "--max-held-bytes", str(HELD), "--http", "127.0.0.1:0"))
        port = broker.port if protocol == "tcp" else urlsplit(broker.http).port
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(CLIENTS)]
        with broker.connect() as wire:
            settled(wire)
            Path(f"/proc/{broker.pid}/clear_refs").write_text("5")  # the peak is the present size
            before = peak_bytes(broker)
            broker.signal(signal.SIGSTOP)
            sent = sum(send_what_fits(client, HEAD[protocol] + PART) for client in clients)
            broker.signal(signal.SIGCONT)
            settled(wire)
        assert sent > 80 * MIB, "else there is nothing to be afraid of"
        # beside what is held: 8 KiB that each connection may have, its objects, and the pieces of a read
        assert peak_bytes(broker) - before < 14 * HELD


def send_what_fits(client: socket.socket, data: bytes) -> int:
    client.setblocking(False)
    return client.send(data)


def settled(wire: Wire) -> None:
    """Wait until the broker has gone round all connections a few times."""
    for _ in range(50):
        wire.send(b"PING\n")
        assert wire.line() == b"PONG"


def peak_bytes(broker: BrokerProcess) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{broker.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
