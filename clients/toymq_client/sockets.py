"""Options of a client's TCP socket."""

import socket

from toymq_client.options import KEEPALIVE_IDLE_S, KEEPALIVE_PROBES, USER_TIMEOUT_MS


def set_up(connection: socket.socket) -> None:
    """No delay for small frames, and a peer that is gone without a word is noticed.

    Raises: OSError, also when the connection is one with ourselves: a port that nobody listens on may be given to the socket
        that asks for it, and then they find each other.
    """
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    if connection.getsockname() == connection.getpeername():
        raise ConnectionRefusedError("nobody listens there")
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
