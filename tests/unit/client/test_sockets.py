"""A client's sockets."""

import socket
from pathlib import Path

import pytest

from toymq.sockets import UNIX_PATH_BYTES_MAX, connect_unix, reserved_port, set_up, short_name


class Owner:
    """An object that holds a port."""


def test_a_path_of_any_length_can_be_connected_to(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * UNIX_PATH_BYTES_MAX)
    deep.mkdir()
    path = str(deep / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        with short_name(path) as name:
            assert len(name) <= UNIX_PATH_BYTES_MAX
            listener.bind(name)
        listener.listen()
        with connect_unix(path) as connection:
            assert connection.getpeername()
    with short_name("short") as name:
        assert name == "short"


def test_a_socket_that_connected_to_itself_is_refused() -> None:
    with socket.socket() as connection:
        connection.bind(("127.0.0.1", 0))
        connection.connect(connection.getsockname())
        with pytest.raises(ConnectionRefusedError, match="connected to itself"):
            set_up(connection)


def test_small_frames_leave_at_once_and_a_dead_peer_is_noticed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as connection:
        set_up(connection)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_a_reserved_port_can_be_listened_on_and_stays_its_owners() -> None:
    owner = Owner()
    port = reserved_port(owner)
    for _ in range(2):
        with socket.create_server(("127.0.0.1", port), reuse_port=False):
            pass
    assert all(reserved_port(owner) != port for _ in range(10))


def test_reserved_ports_in_a_row_are_all_the_owners() -> None:
    owner = Owner()
    ports = [reserved_port(owner, 3) for _ in range(10)]
    assert len({port + k for port in ports for k in range(3)}) == 30
    for port in ports:
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind(("127.0.0.1", port + 2))
