"""A client's sockets: TCP with its options, and Unix sockets whatever the length of their path."""

import errno
import os
import socket
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from toymq.options import KEEPALIVE_IDLE_S, KEEPALIVE_PROBES, USER_TIMEOUT_MS

UNIX_PATH_BYTES_MAX = 103
"""What fits into an address everywhere: Linux has room for 107 bytes, the BSDs and macOS for 103."""


@contextmanager
def short_name(path: str) -> Iterator[str]:
    """A name of that place that fits into a socket's address; it holds until the context ends.

    Raises: OSError, ENAMETOOLONG where the system has no way to name a directory by a descriptor: only Linux has.
    """
    if len(os.fsencode(path)) <= UNIX_PATH_BYTES_MAX:
        yield path
        return
    if not hasattr(os, "O_PATH"):
        text = f"a Unix socket's path has at most {UNIX_PATH_BYTES_MAX} bytes on this system"
        raise OSError(errno.ENAMETOOLONG, text, path)
    directory, name = os.path.split(path)
    descriptor = os.open(directory or ".", os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def connect_unix(path: str) -> socket.socket:
    """Return a connected non-blocking socket. Connecting does not wait: the listener has room or refuses.

    Raises: OSError.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        with short_name(path) as name:
            connection.connect(name)
    except BaseException:
        connection.close()
        raise
    return connection


def set_up(connection: socket.socket) -> None:
    """No delay for small frames, and a peer that is gone without a word is noticed.

    Raises: OSError, also when the connection is one with ourselves: a port without a listener may be given to the socket
        that asks for it, and then they find each other.
    """
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    if connection.getsockname() == connection.getpeername():
        raise ConnectionRefusedError("no listener: the socket connected to itself")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_IDLE_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
    ):
        if hasattr(socket, name):  # not every system has each
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def reserved_port(owner: object) -> int:
    """A port of this machine that no other program is given as long as ``owner`` lives: a broker that starts again has it
    again.

    The socket is bound and never listens, so that the broker, with SO_REUSEADDR, can listen on the same port.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    weakref.finalize(owner, held.close)
    return int(held.getsockname()[1])
