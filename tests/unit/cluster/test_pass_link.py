"""A client's commands passed on to the leader of another group: in any order of connecting, finishing and losing the
connection."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.certificates import CERT, CLIENT_CERT, CLIENT_KEY, KEY
from toymq.options import SILENT_S
from toymq_py.cluster import pass_link
from toymq_py.cluster.pass_link import PassLink, Refusals, take_passed
from toymq_py.cluster.replica_listener import ReplicaListener
from toymq_py.forking import BACK_OFF_MAX_S
from toymq_py.net.certificates import PeerCertificates
from toymq_py.replication.agreement import LeaderKey, Member
from toymq_py.replication.pass_line import PASS, Pass
from toymq_py.session import spread_subscription, upstream

ASKED = Pass("orders", "b", "secret")


class Session(asyncio.Protocol):
    """Answers each line with OK and its number, and QUIT last."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.said = b""
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.said += data
        for line in data.splitlines():
            self.transport.write(b"OK 0\n" if line == b"QUIT" else b"MSG t 1 1 1 1 1\nx\nOK %d\n" % len(line))
            if line == b"QUIT":
                self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


class Rig:
    """The listener of a leader, and links to it."""

    def __init__(self, here: Pass, certificates: PeerCertificates | None) -> None:
        self.here = here
        self.certificates = certificates
        self.sessions: list[Session] = []
        self.trusted: list[bool] = []
        self.leads = True
        self.refusals = Refusals()
        self.frames: list[bytes] = []
        self.heard = asyncio.Event()
        self.lost = asyncio.Event()
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.listener = ReplicaListener([self.socket], certificates, self._serve, asyncio.get_running_loop())
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first = await reader.read(len(PASS))
        if not first:
            return False  # the other end has given up
        assert first + (await reader.readexactly(len(PASS) - len(first))) == PASS
        return await take_passed(reader, writer, self.here, self._session, lambda: "10.0.0.9:1")

    def _session(self, trusted: bool) -> Session | None:
        if not self.leads:
            return None
        self.trusted.append(trusted)
        self.sessions.append(Session())
        return self.sessions[-1]

    def link(
        self, asked: Pass = ASKED, leader: Callable[[], str | None] | None = None, certificates: PeerCertificates | None = None
    ) -> PassLink:
        def found() -> LeaderKey | None:
            address = leader() if leader is not None else self.address
            return None if address is None else LeaderKey(Member("1" * 32, "b1", "10.0.0.1:1", address), 1, 1)

        def received(frames: list[bytes]) -> None:
            self.frames += frames
            self.heard.set()

        shown = certificates or self.certificates
        return PassLink(asked, found, lambda: shown, asyncio.get_running_loop(), received, self.lost.set, self.refusals)

    async def hears(self, *frames: bytes) -> None:
        async with asyncio.timeout(10):
            while len(self.frames) < len(frames):
                self.heard.clear()
                await self.heard.wait()
        assert self.frames == list(frames)


@asynccontextmanager
async def rig_of(here: Pass = ASKED, certificates: PeerCertificates | None = None) -> AsyncIterator[Rig]:
    rig = Rig(here, certificates)
    rig.listener.start()
    try:
        yield rig
    finally:
        rig.listener.stop()
        rig.socket.close()
        for session in rig.sessions:
            session.transport.abort()


MESSAGE = b"MSG t 1 1 1 1 1\nx\n"


@pytest.mark.parametrize("over_tls", [False, True])
async def test_what_is_said_comes_back_in_frames_and_the_end_is_not_passed_on(over_tls: bool) -> None:
    certificates = PeerCertificates(CERT, KEY, CERT) if over_tls else None
    async with rig_of(certificates=certificates) as rig:
        link = rig.link()
        link.send([b"PI", b"NG\n"])
        await rig.hears(MESSAGE, b"OK 4\n")
        link.send([b"TOPICS\n"])
        link.finish()
        link.finish()
        async with asyncio.timeout(10):
            await rig.lost.wait()
        assert rig.frames == [MESSAGE, b"OK 4\n", MESSAGE, b"OK 6\n"], "the answer to QUIT is its own"
        assert rig.sessions[0].said == b"PING\nTOPICS\nQUIT\n"


async def test_a_link_that_is_closed_says_nothing() -> None:
    async with rig_of() as rig:
        link = rig.link()
        link.send([b"PING\n"])
        await rig.hears(MESSAGE, b"OK 4\n")
        link.close()
        link.close()
        async with asyncio.timeout(10):
            await rig.sessions[0].lost.wait()
        assert not rig.lost.is_set()
        unconnected = rig.link()
        unconnected.close()
        unconnected.send([b"PING\n"])
        unconnected.pause()
        unconnected.resume()
        assert not rig.lost.is_set()


async def test_a_link_that_breaks_is_lost_with_its_last_frame() -> None:
    async with rig_of() as rig:
        link = rig.link()
        link.send([b"PING\n"])
        await rig.hears(MESSAGE, b"OK 4\n")
        link.finish()
        rig.frames.clear()
        rig.sessions[0].transport.write(b"ERR SHUTTING_DOWN later\n")
        rig.sessions[0].transport.close()
        async with asyncio.timeout(10):
            await rig.lost.wait()
        assert b"".join(rig.frames) in (b"ERR SHUTTING_DOWN later\n", b"OK 0\nERR SHUTTING_DOWN later\n", b"")


async def test_what_is_paused_waits() -> None:
    async with rig_of() as rig:
        link = rig.link()
        link.pause()
        link.send([b"PING\n"])
        async with asyncio.timeout(10):
            while not rig.sessions or not rig.sessions[0].said:  # noqa: ASYNC110 (another task)
                await asyncio.sleep(0.005)
        assert rig.frames == []
        link.resume()
        await rig.hears(MESSAGE, b"OK 4\n")
        link.close()


async def test_a_leader_that_is_not_there_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_link, "RETRY_S", 0.01)
    async with rig_of() as rig:
        rig.leads = False
        known: list[str | None] = [None, "127.0.0.1:1", rig.address]
        link = rig.link(leader=lambda: known.pop(0) if len(known) > 1 else known[0])
        link.send([b"PING\n"])
        async with asyncio.timeout(10):
            while len(known) > 1:  # noqa: ASYNC110 (another task)
                await asyncio.sleep(0.005)
        rig.leads = True
        await rig.hears(MESSAGE, b"OK 4\n")
        link.close()


@pytest.mark.parametrize(
    "asked", [Pass("orders", "b", None), Pass("orders", "b", "other"), Pass("mail", "b", "secret"),
              Pass("orders", "a", "secret"), Pass("orders", "b", "secret", 2)],
)  # fmt: skip
async def test_what_is_for_another_or_without_the_secret_is_refused(asked: Pass, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_link, "RETRY_S", 0.01)
    monkeypatch.setattr(pass_link, "CONNECT_S", 0.2)
    async with rig_of() as rig:
        rig.link(asked).send([b"PING\n"])
        async with asyncio.timeout(10):
            await rig.lost.wait()
        assert (rig.sessions, rig.frames) == ([], [])


async def test_another_secret_is_said_at_once_and_once_by_both_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Found: with different secrets the client and the log of the refused node had "does not answer, try again", after four
    seconds."""
    said = "the secret that was shown is another one: give all nodes of all groups the same word in --replicate-token-file"
    async with rig_of() as rig:
        for _ in range(2):
            rig.lost.clear()
            link = rig.link(Pass("orders", "b", "other"))
            link.send([b"PING\n"])
            async with asyncio.timeout(pass_link.CONNECT_S / 2):
                await rig.lost.wait()
            assert link.refusal == f"AUTH_FAILED {said}"
        assert str(rig.refusals) == f"group b refuses this node: AUTH_FAILED {said}"
        assert caplog.messages.count(f"group b refuses this node: AUTH_FAILED {said}") == 1
        assert f"a node of another group was refused: AUTH_FAILED {said}" in caplog.messages
        rig.link().send([b"PING\n"])
        await rig.hears(MESSAGE, b"OK 4\n")
        assert str(rig.refusals) == "", "the secret is the same now"


async def test_a_certificate_of_another_ca_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_link, "RETRY_S", 0.05)
    monkeypatch.setattr(pass_link, "CONNECT_S", 0.5)
    async with rig_of(certificates=PeerCertificates(CERT, KEY, CERT)) as rig:
        rig.link(certificates=PeerCertificates(CLIENT_CERT, CLIENT_KEY, CERT))
        async with asyncio.timeout(10):
            await rig.lost.wait()
        assert rig.sessions == []


async def test_what_is_no_protocol_ends_the_link() -> None:
    async with rig_of() as rig:
        link = rig.link()
        link.send([b"PING\n"])
        await rig.hears(MESSAGE, b"OK 4\n")
        rig.sessions[0].transport.write(b"JSON x\n")
        async with asyncio.timeout(10):
            await rig.lost.wait()


async def test_the_refusal_of_a_follower_names_its_leader() -> None:
    async with rig_of() as rig:
        rig.leads = False
        reader, writer = await asyncio.open_connection("127.0.0.1", int(rig.address.rpartition(":")[2]))
        writer.write(b"PASS 1 cluster=orders group=b auth=secret\n")
        assert await reader.read() == b"ERR NOT_LEADER 10.0.0.9:1\n"
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", int(rig.address.rpartition(":")[2]))
        writer.write(b"PASS nonsense\n")
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("trusts", [False, True])
async def test_a_node_has_all_rights_where_it_is_known_to_be_one(trusts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_link, "RETRY_S", 0.01)
    monkeypatch.setattr(pass_link, "CONNECT_S", 0.3)
    async with rig_of(Pass("orders", "b", "secret", trusted=trusts)) as rig:
        link = rig.link(Pass("orders", "b", "secret", trusted=True))
        link.send([b"PING\n"])
        if trusts:
            await rig.hears(MESSAGE, b"OK 4\n")
            link.close()
        else:
            async with asyncio.timeout(10):
                await rig.lost.wait()
        assert rig.trusted == [True] * trusts
        plain = rig.link()
        plain.send([b"PING\n"])
        async with asyncio.timeout(10):
            while rig.trusted[trusts:] != [False]:  # noqa: ASYNC110 (another task)
                await asyncio.sleep(0.005)
        plain.close()


def test_a_client_is_told_what_is_away_before_it_leaves_a_broker_that_says_nothing() -> None:
    """Found: the client left just before the error came, asked the next broker, and raised after its whole timeout that there
    is no answer."""
    assert max(pass_link.CONNECT_S, spread_subscription.PATIENCE_S) + 0.5 < SILENT_S
    assert BACK_OFF_MAX_S < upstream.REACH_S < 30, "which is `timeout_s` of a client"
