"""A client's sockets: TCP with its options, and Unix sockets whatever the length of their path."""

import contextlib
import errno
import os
import socket
import weakref
from collections.abc import Iterator

from toymq.options import (
    KEEPALIVE_IDLE_S,
    KEEPALIVE_PROBES,
    QUICK_IDLE_S,
    QUICK_USER_TIMEOUT_MS,
    USER_TIMEOUT_MS,
)

UNIX_PATH_BYTES_MAX = 103
"""Longest path that fits into a socket address everywhere: Linux takes 107 bytes, the BSDs and macOS 103."""


@contextlib.contextmanager
def short_name(path: str) -> Iterator[str]:
    """Yield a name for a path that is short enough for a Unix socket address, valid until the context ends.

    Raises: OSError, ENAMETOOLONG except on Linux, which can name a directory by a descriptor.
    """
    if len(os.fsencode(path)) <= UNIX_PATH_BYTES_MAX:
        yield path
        return
    if not hasattr(os, "O_PATH"):
        text = f"path of a Unix socket too long: this system takes {UNIX_PATH_BYTES_MAX} bytes"
        raise OSError(errno.ENAMETOOLONG, text, path)
    directory, name = os.path.split(path)
    descriptor = os.open(directory or ".", os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def connect_unix(path: str) -> socket.socket:
    """Connect to a Unix socket, and return the non-blocking socket. This never waits: the listener accepts or refuses at
    once. Raises: OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        with short_name(path) as name:
            connection.connect(name)
    except BaseException:
        connection.close()
        raise
    return connection


def set_up(connection: socket.socket, *, quick: bool = False) -> None:
    """Set a socket's options: small frames are sent without delay, and a dead peer is detected, within 6 to 9 seconds if
    ``quick``.

    Raises: OSError, also when the socket connected to itself: the system may pick the port without a listener as its own.
    """
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    if connection.getsockname() == connection.getpeername():
        raise ConnectionRefusedError("no listener: the socket connected to itself")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle_s = QUICK_IDLE_S if quick else KEEPALIVE_IDLE_S
    for name, value in (
        ("TCP_KEEPIDLE", idle_s),
        ("TCP_KEEPINTVL", idle_s),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", QUICK_USER_TIMEOUT_MS if quick else USER_TIMEOUT_MS),
    ):
        if hasattr(socket, name):  # not every system has each
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def is_time_limit(error: OSError) -> bool:
    """Whether an error is a TimeoutError that the application's signal handler raised, which the caller must get, and not a
    socket's."""
    return isinstance(error, TimeoutError) and error.errno is None and not str(error).endswith("timed out")


def reserved_port(owner: object, count: int = 1) -> int:
    """Reserve a free port while ``owner`` lives, so that a broker gets the same port after a restart.

    The socket is bound and never listens, so that the broker, with SO_REUSEADDR, can listen on the same port.

    Args:
        count: how many consecutive ports to reserve; the first is returned.
    """
    while True:
        with contextlib.ExitStack() as held:
            first = _bind(held, 0)
            try:
                for following in range(first + 1, first + count):
                    _bind(held, following)
            except (OSError, OverflowError):  # another one has it; behind the last port
                continue
            weakref.finalize(owner, held.pop_all().close)
            return first


def _bind(held: contextlib.ExitStack, port: int) -> int:
    bound = held.enter_context(socket.socket())
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    return int(bound.getsockname()[1])
