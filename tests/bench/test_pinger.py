"""The process that sends PINGs."""

import socket
import threading

import pytest

from toymq_bench.pinger import main


def serve(listener: socket.socket, replies: int) -> None:
    """Answer so many PINGs, in two pieces each, then close."""
    connection, _ = listener.accept()
    with connection:
        for _ in range(replies):
            if connection.recv(64) != b"PING\n":
                return
            connection.sendall(b"PO")
            connection.sendall(b"NG\n")


def test_each_reply_is_counted_and_a_lost_connection_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        for replies, seconds in ((10_000, 0.02), (1, 60.0)):
            server = threading.Thread(target=serve, args=(listener, replies))
            server.start()
            if replies == 1:
                with pytest.raises(ConnectionResetError):
                    main("127.0.0.1", port, seconds)
            else:
                assert sum(main("127.0.0.1", port, seconds).values()) > 0
            server.join()
