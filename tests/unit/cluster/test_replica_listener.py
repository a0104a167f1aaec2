"""Connections between nodes, with TLS and without: each end proves that it belongs to the cluster, or nothing is copied."""

import asyncio
import logging
import socket
from pathlib import Path

import pytest

from tests.support.certificates import CERT, CLIENT_CERT, CLIENT_KEY, KEY
from tests.support.link_rig import FollowerRig, LeaderRig, assert_same
from toymq_py.cluster import replica_listener
from toymq_py.cluster.replica_listener import ReplicaListener
from toymq_py.errors import ConfigError
from toymq_py.net.certificates import PeerCertificates
from toymq_py.replication.follower_link import EndReason, FollowEnd
from toymq_py.replication.link_options import LinkOptions

OPTIONS = LinkOptions(timeout_s=1.0)


def of_cluster() -> PeerCertificates:
    return PeerCertificates(CERT, KEY, CERT)


def of_a_stranger(believes: str) -> PeerCertificates:
    """Return a certificate that the nodes' CA has not signed."""
    return PeerCertificates(CLIENT_CERT, CLIENT_KEY, believes)


async def followed(
    tmp_path: Path, leader: PeerCertificates | None, follower: PeerCertificates | None, host: str = "127.0.0.1"
) -> FollowEnd | None:
    """Let a follower join a leader. Returns: why it ended; None if it is in sync, with the same files."""
    async with LeaderRig(tmp_path / "n1", options=OPTIONS, certificates=leader, host=host).serving() as n1:
        await n1.publish("jobs", b"a message of a client")
        n2 = FollowerRig(tmp_path / "n2", certificates=follower)
        async with n2.following(n1) as task:
            while not task.done() and not n1._is_in_sync(2):  # noqa: ASYNC110 (another task)
                await asyncio.sleep(0.005)
            if task.done():
                return task.result()
            await assert_same(n1, n2)
            return None


async def test_nodes_with_certificates_of_one_ca_replicate(tmp_path: Path) -> None:
    assert await followed(tmp_path, of_cluster(), of_cluster()) is None


async def test_a_follower_that_the_ca_does_not_know_gets_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    end = await followed(tmp_path, of_cluster(), of_a_stranger(believes=CERT))
    assert end is not None
    assert (end.reason, end.code) == (EndReason.REFUSED, "BAD_CERTIFICATE")
    assert not list((tmp_path / "n2").rglob("*.log"))
    (line,) = [each.getMessage() for each in caplog.records if "was refused" in each.getMessage()]
    assert line.startswith("a connection to the listener of replicas, from 127.0.0.1:")
    assert "its certificate is not accepted" in line


async def test_a_leader_that_the_ca_does_not_know_is_not_followed(tmp_path: Path) -> None:
    end = await followed(tmp_path, of_a_stranger(believes=CERT), of_cluster())
    assert end is not None
    assert (end.reason, end.code) == (EndReason.WRONG_PEER, "WRONG_PEER")
    assert "its certificate is not accepted" in end.detail


async def test_a_leader_whose_certificate_is_for_another_address_is_not_followed(tmp_path: Path) -> None:
    end = await followed(tmp_path, of_cluster(), of_cluster(), host="127.0.0.2")
    assert end is not None
    assert end.code == "WRONG_PEER"
    assert "127.0.0.2" in end.detail


async def test_one_end_without_tls_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    end = await followed(tmp_path, of_cluster(), None)
    assert end is not None
    assert end.reason is EndReason.LOST
    assert any("listener of replicas" in each.getMessage() for each in caplog.records)
    end = await followed(tmp_path, None, of_cluster())
    assert end is not None
    assert end.reason is EndReason.LOST


async def test_connections_that_say_nothing_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_listener, "CONNECTIONS_MAX", 2)
    served: list[asyncio.StreamWriter] = []
    ends = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(writer)
        await ends.wait()

    bound = socket.create_server(("127.0.0.1", 0))
    bound.setblocking(False)
    listener = ReplicaListener([bound], None, serve, asyncio.get_running_loop())
    listener.start()
    streams = [await asyncio.open_connection(*bound.getsockname()) for _ in range(3)]
    assert await streams[2][0].read() == b"", "one more is closed at once"
    assert len(served) == 2
    ends.set()
    assert await streams[0][0].read() == b""
    listener.stop()
    bound.close()
    for _, writer in streams:
        writer.close()


async def test_handshakes_that_have_begun_give_way_to_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Found: connections that sent nothing kept the nodes out, as long as new ones replaced them."""
    monkeypatch.setattr(replica_listener, "CONNECTIONS_MAX", 2)
    ends = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await ends.wait()
        return False

    bound = socket.create_server(("127.0.0.1", 0))
    bound.setblocking(False)
    host, port = bound.getsockname()
    listener = ReplicaListener([bound], of_cluster(), serve, asyncio.get_running_loop())
    listener.start()
    async with asyncio.timeout(10):
        silent = [await asyncio.open_connection(host, port) for _ in range(2)]
        nodes = [await replica_listener.connect(f"{host}:{port}", of_cluster()) for _ in range(2)]
        assert [await reader.read() for reader, _ in silent] == [b"", b""]
        late = await asyncio.open_connection(host, port)
        assert await late[0].read() == b"", "both places are those of nodes"
        assert [node[0].at_eof() for node in nodes] == [False, False]
        ends.set()
        assert [await reader.read() for reader, _ in nodes] == [b"", b""]
    assert caplog.text.count("its handshake gave way to a newer connection, of 2 at most") == 2
    listener.stop()
    bound.close()
    for _, writer in (*silent, *nodes, late):
        writer.close()


@pytest.mark.provokes_bugs
async def test_a_bug_of_a_link_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise ValueError("a bug")

    bound = socket.create_server(("127.0.0.1", 0))
    bound.setblocking(False)
    listener = ReplicaListener([bound], None, serve, asyncio.get_running_loop())
    listener.start()
    with caplog.at_level(logging.ERROR):
        reader, writer = await asyncio.open_connection(*bound.getsockname())
        assert await reader.read() == b""
        await asyncio.sleep(0)
    assert "a bug in the link of a replica" in caplog.text
    listener.stop()
    bound.close()
    writer.close()


def test_certificates_of_nodes_are_checked_as_others_are() -> None:
    with pytest.raises(ConfigError, match="is not that of the certificate"):
        PeerCertificates(CERT, CLIENT_KEY, CERT)
    with pytest.raises(ConfigError, match=r"the CA certificate file .* is not a PEM file"):
        PeerCertificates(CERT, KEY, KEY)


def test_both_contexts_are_made_anew() -> None:
    certificates = of_cluster()
    before = certificates.context, certificates.client_context
    certificates.reload()
    assert certificates.context is not before[0]
    assert certificates.client_context is not before[1]
