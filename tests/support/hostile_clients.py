"""Hostile clients, in a process of their own: ``python -m tests.support.hostile_clients BEHAVIOUR PORT COUNT``.

They have a process of their own because a thread in the measuring process would disturb the measurement, and because ten
thousand sockets need many descriptors. The process prints one line when the load is on, keeps the load up while its standard
input is open, then ends it, and prints one line of JSON with what it saw. ``tests.support.hostile_load`` is the other end.
"""

import json
import resource
import select
import selectors
import socket
import sys
from collections.abc import Callable, Iterator
from itertools import cycle

HOST = "127.0.0.1"
CHUNK_BYTES = 1 << 18
CONNECT_TIMEOUT_S = 60
SLOW_S = 1.0
PIPELINES = {
    "ping": b"PING\n",
    "fetch": b"FETCH t 0 1\n",
    "fetch-nothing": b"FETCH t 1 1\n",  # the shortest answer to what costs most
    "bad": b"FROB \xff\x00 t\n",
    "describe": b"DESCRIBE t\n",
    "ack-lists": b"ACK t c " + b",".join(b"%d" % n for n in range(1, 1600, 2)) + b"\n",
}
"""Commands that are sent again and again. Each is answered by one line, and a body where the line says so."""


def said(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def told_to_end() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def connect(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), CONNECT_TIMEOUT_S)


def refuses(sock: socket.socket, data: bytes) -> bool:
    """Send without waiting. Returns: whether the other end took nothing, or has closed."""
    try:
        return sock.send(data) == 0
    except OSError:
        return True


def slowloris(port: int, count: int) -> dict[str, int]:
    """Send one byte a second on each connection: lines and bodies that seem never to end, though now and then one does."""
    kinds = (b"PUB slow - 300\n" + b"x" * 300 + b"\n", b"PING\n", b"Z" * 5000, b"SUB slow c window=7\n")
    streams: list[tuple[socket.socket, Iterator[int]]] = [
        (connect(port), cycle(kinds[n % len(kinds)])) for n in range(count)
    ]
    said("on")
    sent = 0
    for sock, stream in cycle(streams):
        if select.select([sys.stdin], [], [], SLOW_S / count)[0]:
            break
        sock.setblocking(False)
        sent += not refuses(sock, bytes([next(stream)]))
    for sock, _ in streams:
        sock.close()
    return {"bytes": sent}


def never_reads(port: int, count: int, setup: bytes, stream: bytes) -> dict[str, int]:
    """Send until the broker takes no more, and read nothing; repeat while the load is on."""
    sockets = [connect(port) for _ in range(count)]
    for n, sock in enumerate(sockets):
        sock.sendall(setup % n if setup else b"")
        sock.setblocking(False)
    offsets = [0] * count
    announced = False
    while not told_to_end():
        taken = 0
        for n, sock in enumerate(sockets):
            try:
                sent = sock.send(memoryview(stream)[offsets[n] % len(stream) :]) if stream else 0
            except OSError:
                continue
            offsets[n] += sent
            taken += sent
        if not taken:
            if not announced:
                said("on")
                announced = True
            select.select([sys.stdin], sockets if stream else [], [], 0.05)
    for sock in sockets:
        sock.close()
    return {"bytes": sum(offsets)}


def pipeline(port: int, count: int, command: bytes) -> dict[str, int]:
    """Send one command ``count`` times without a pause, on one connection that reads its answers."""
    sock = connect(port)
    sock.setblocking(False)
    block = command * (CHUNK_BYTES // len(command) + 1)
    left, at = count * len(command), 0
    received = lines = 0
    counted = LineCounter()
    selector = selectors.DefaultSelector()
    selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
    said("on")
    while lines < count:
        for _, events in selector.select(CONNECT_TIMEOUT_S):
            if events & selectors.EVENT_READ:
                data = sock.recv(CHUNK_BYTES)
                if not data:
                    return {"answers": lines, "bytes": received}
                received += len(data)
                lines += counted.add(data)
            if events & selectors.EVENT_WRITE and left:
                sent = sock.send(memoryview(block)[at : at + min(left, CHUNK_BYTES)])
                left -= sent
                at = (at + sent) % len(command)
                if not left:
                    selector.modify(sock, selectors.EVENT_READ)
    sock.close()
    return {"answers": lines, "bytes": received}


class LineCounter:
    """Counts answers. An answer with a body ends with a second newline; bodies contain none here."""

    def __init__(self) -> None:
        self._rest = b""
        self._body = 0  # bytes of a body, with its newline, that are still to come

    def add(self, data: bytes) -> int:
        if not self._rest and not self._body and b"BATCH" not in data and b"JSON" not in data:
            end = data.rfind(b"\n") + 1
            self._rest = data[end:]
            return data.count(b"\n", 0, end)
        data = self._rest + data
        pos = count = 0
        while True:
            if self._body:
                taken = min(self._body, len(data) - pos)
                pos += taken
                self._body -= taken
                if self._body:
                    break
                count += 1
            at = data.find(b"\n", pos)
            if at < 0:
                break
            line = data[pos:at]
            pos = at + 1
            if line.startswith((b"BATCH", b"JSON")):
                self._body = int(line.rpartition(b" ")[2]) + 1
            else:
                count += 1
        self._rest = data[pos:]
        return count


def crowd(port: int, count: int) -> dict[str, int]:
    """Open connections that idle, or send garbage, half a line or half a body; half of them end with a reset, the others with a
    FIN."""
    openings = (b"", b"\xff\xfe\0 garbage\n" * 5, b"PUB t - 10", b"PUB t - 1000\nabc", b"X" * 4000)
    sockets = []
    for n in range(count):
        sock = connect(port)
        sock.sendall(openings[n % len(openings)])
        sockets.append(sock)
        if n % 512 == 0 and told_to_end():
            break
    said("on")
    while not told_to_end():
        select.select([sys.stdin], [], [], None)
    for n, sock in enumerate(sockets):
        if n % 2:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()
    return {"connections": len(sockets)}


def behaviours() -> dict[str, Callable[[int, int], dict[str, int]]]:
    found: dict[str, Callable[[int, int], dict[str, int]]] = {
        "slowloris": slowloris,
        "crowd": crowd,
        "subscribes-and-never-reads": lambda port, count: never_reads(port, count, b"SUB t rude%d window=1000000\n", b""),
        "publishes-and-never-reads": lambda port, count: never_reads(port, count, b"", b"PUB replies - 9\n012345678\n" * 5000),
        "fetches-and-never-reads": lambda port, count: never_reads(port, count, b"", b"FETCH t 0 1000\n" * 5000),
    }
    for name, command in PIPELINES.items():
        found[f"pipeline-of-{name}"] = lambda port, count, command=command: pipeline(port, count, command)  # type: ignore[misc]
    return found


def main(behaviour: str, port: str, count: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    said(json.dumps(behaviours()[behaviour](int(port), int(count))))


if __name__ == "__main__":
    main(*sys.argv[1:])
