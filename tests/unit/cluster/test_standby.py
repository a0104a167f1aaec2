"""The answers of a node that does not lead."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.certificates import CERT, KEY
from toymq_py.cluster import standby
from toymq_py.cluster.standby import CONNECTIONS_MAX, Standby
from toymq_py.gateway.http_heads import HEAD_BYTES_MAX
from toymq_py.metrics import ClusterRows
from toymq_py.net.certificates import Certificates
from toymq_py.net.host_names import AllowedHosts

MINE = "10.0.0.9:6789"


class View:
    """The cluster as n2 sees it, which follows n1."""

    def __init__(self) -> None:
        self.named: str | None = "10.0.0.1:6789"
        self.certain = True
        self.epoch = 7

    def leader(self) -> str | None:
        return self.named

    def leader_epoch(self) -> int:
        return self.epoch if self.named is not None else 0

    def leader_is_certain(self) -> bool:
        return self.certain

    def is_elected(self) -> bool:
        return self.named == MINE

    def leader_http(self, scheme: str) -> str | None:
        return None if self.named is None else f"{scheme}://10.0.0.1:6780"

    def describe(self) -> dict[str, object]:
        return {"role": "follower", "state": "FOLLOWING", "epoch": 7}

    def rows(self) -> ClusterRows:
        return ClusterRows({"role": {("FOLLOWING", ""): 1.0}, "epoch": {(): 7}}, {})


def bound() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    listener.setblocking(False)
    return listener


class Rig:
    def __init__(self, standby_: Standby, view: View, listeners: dict[str, socket.socket]) -> None:
        self.standby = standby_
        self.view = view
        self.listeners = listeners

    async def ask(self, option: str, data: bytes, tls: ssl.SSLContext | None = None) -> bytes:
        """Send the data. Returns: all answers up to the end of the connection."""
        port = self.listeners[option].getsockname()[1]
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=tls, server_hostname="127.0.0.1" if tls is not None else None
        )
        writer.write(data)
        try:
            async with asyncio.timeout(20):
                return await reader.read()
        finally:
            writer.close()

    async def get(self, path: str, *, method: str = "GET", host: str = "localhost") -> tuple[int, dict[str, str], bytes]:
        answer = await self.ask("--http", f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        head, _, body = answer.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        return int(status.split()[1]), dict(line.split(": ", 1) for line in lines), body


@asynccontextmanager
async def serving() -> AsyncIterator[Rig]:
    listeners = {option: bound() for option in ("--listen", "--tls-listen", "--http", "--metrics", "--replicate", "--amqp")}
    certificates = Certificates(CERT, KEY, None)
    view = View()
    answers = Standby(
        {option: [each] for option, each in listeners.items()}, view, asyncio.get_running_loop(),
        lambda: certificates.context, AllowedHosts(),
    )  # fmt: skip
    answers.start()
    try:
        yield Rig(answers, view, listeners)
    finally:
        answers.stop()
        for listener in listeners.values():
            listener.close()


@pytest.mark.parametrize("line", [b"HELLO 1 client=x\n", b"PING\n", b"PUB t - 3\nabc\n", b"\n"])
async def test_the_first_command_gets_the_leader_and_the_end(line: bytes) -> None:
    async with serving() as rig:
        assert await rig.ask("--listen", line) == b"ERR NOT_LEADER 10.0.0.1:6789\n"
        rig.view.named = None
        assert await rig.ask("--listen", line) == b"ERR NOT_LEADER -\n"


async def test_while_the_leader_is_in_doubt_the_answer_waits_for_another() -> None:
    async with serving() as rig:
        rig.view.certain = False
        asked = [asyncio.get_running_loop().create_task(rig.ask("--listen", b"HELLO 1\nPING\n")) for _ in range(3)]
        await until_held(rig, 3)
        rig.standby.news()
        rig.view.named = None
        rig.standby.news()
        assert len(rig.standby._held) == 3, "the same one, or none, is no news"
        rig.view.named, rig.view.epoch = "10.0.0.2:6789", 9
        rig.standby.news()
        assert set(await asyncio.gather(*asked)) == {b"ERR NOT_LEADER 10.0.0.2:6789\n"}


async def test_a_leader_that_is_elected_again_is_another_one() -> None:
    """The leader's process was killed, and is elected again at the same address: clients that wait are sent there."""
    async with serving() as rig:
        rig.view.certain = False
        asked = asyncio.get_running_loop().create_task(rig.ask("--listen", b"PING\n"))
        await until_held(rig, 1)
        rig.view.epoch = 9
        rig.standby.news()
        assert await asked == b"ERR NOT_LEADER 10.0.0.1:6789\n"


async def test_what_waits_is_answered_when_the_leader_is_heard_again() -> None:
    async with serving() as rig:
        rig.view.certain = False
        asked = asyncio.get_running_loop().create_task(rig.ask("--listen", b"PING\n"))
        await until_held(rig, 1)
        rig.view.certain = True
        rig.standby.news()
        assert await asked == b"ERR NOT_LEADER 10.0.0.1:6789\n"


async def test_what_waits_is_told_to_come_again_when_this_node_is_elected() -> None:
    """The answer names this node itself, and is given only when the node stops to be a standby: a connection made then waits
    until it serves."""
    async with serving() as rig:
        rig.view.certain = False
        asked = asyncio.get_running_loop().create_task(rig.ask("--listen", b"PING\n"))
        await until_held(rig, 1)
        rig.view.named = MINE
        rig.standby.news()
        assert len(rig.standby._held) == 1, "what came again now would not find the broker"
        rig.standby.stop()
        assert await asked == f"ERR NOT_LEADER {MINE}\n".encode()


async def test_a_client_that_is_going_is_not_answered() -> None:
    """Found: uvloop raises for a write to a closing connection, which was a traceback in the log."""

    class Closing:
        def is_closing(self) -> bool:
            return True

        def write(self, data: bytes) -> None:
            raise RuntimeError("the handler is closed")

    async with serving() as rig:
        rig.view.certain = False
        asked = asyncio.get_running_loop().create_task(rig.ask("--listen", b"PING\n"))
        await until_held(rig, 1)
        (held,) = rig.standby._held
        transport, held._transport = held._transport, Closing()  # type: ignore[assignment]
        held.let_go()
        assert transport is not None
        transport.abort()
        assert await asked == b""


async def test_the_wait_for_another_leader_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "HOLD_S", 0.05)
    async with serving() as rig:
        rig.view.certain, rig.view.named = False, None
        assert await rig.ask("--listen", b"PING\n") == b"ERR NOT_LEADER -\n"
        assert rig.standby._held == {}


async def test_no_more_wait_than_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "HELD_MAX", 2)
    async with serving() as rig:
        rig.view.certain = False
        asked = [asyncio.get_running_loop().create_task(rig.ask("--listen", b"PING\n")) for _ in range(2)]
        await until_held(rig, 2)
        assert await rig.ask("--listen", b"PING\n") == b"ERR NOT_LEADER 10.0.0.1:6789\n"
        port = rig.listeners["--listen"].getsockname()[1]
        _, gone = await asyncio.open_connection("127.0.0.1", port)
        asked[0].cancel()
        gone.close()
        await until_held(rig, 1)
        rig.view.certain = True
        rig.standby.news()
        assert await asked[1] == b"ERR NOT_LEADER 10.0.0.1:6789\n"


async def test_health_is_told_at_once_whatever_is_in_doubt() -> None:
    async with serving() as rig:
        rig.view.certain = False
        assert (await rig.get("/healthz"))[0] == 200
        assert (await rig.get("/v1/topics"))[0] == 307


async def until_held(rig: "Rig", count: int) -> None:
    async with asyncio.timeout(20):
        while len(rig.standby._held) != count:  # noqa: ASYNC110 (sockets)
            await asyncio.sleep(0.01)


async def test_over_tls_too() -> None:
    context = ssl.create_default_context(cafile=CERT)
    context.check_hostname = False
    async with serving() as rig:
        assert await rig.ask("--tls-listen", b"PING\n", context) == b"ERR NOT_LEADER 10.0.0.1:6789\n"


async def test_a_line_without_an_end_is_refused() -> None:
    async with serving() as rig:
        assert (await rig.ask("--listen", b"x" * 5000)).startswith(b"ERR LINE_TOO_LONG ")


async def test_get_is_redirected_and_all_else_refused() -> None:
    async with serving() as rig:
        status, headers, body = await rig.get("/v1/topics?limit=3")
        assert (status, headers["location"]) == (307, "http://10.0.0.1:6780/v1/topics?limit=3")
        assert json.loads(body)["code"] == "NOT_LEADER"
        sentence = "this node follows: 10.0.0.1:6789 leads; ask its gateway, http://10.0.0.1:6780"
        assert json.loads(body)["detail"] == sentence, "it was an address alone"
        status, headers, _ = await rig.get("/v1/topics/t/messages", method="POST")
        assert (status, headers["retry-after"]) == (503, "1")
        assert headers["location"] == "http://10.0.0.1:6780/v1/topics/t/messages"
        rig.view.named = None
        status, headers, body = await rig.get("/v1/topics")
        assert status == 503
        assert "location" not in headers
        assert json.loads(body)["detail"] == "this node follows, and no node leads yet: try again"


async def test_health_says_what_the_node_does() -> None:
    async with serving() as rig:
        status, _, body = await rig.get("/healthz")
        assert status == 200
        assert {"role": "follower", "state": "FOLLOWING", "epoch": 7, "status": "ok"}.items() <= json.loads(body).items()
        for path in ("/leader", "/readyz"):
            status, _, body = await rig.get(path)
            assert (status, json.loads(body)["status"]) == (503, "unready"), path
        status, headers, body = await rig.get("/healthz", method="HEAD")
        assert (status, body) == (200, b"")
        assert int(headers["content-length"]) > 0


async def test_its_metrics_are_those_of_the_cluster() -> None:
    async with serving() as rig:
        status, headers, body = await rig.get("/metrics")
        assert status == 200
        assert headers["content-type"].startswith("text/plain")
        assert b'toymq_role{role="FOLLOWING"} 1.0\n' in body
        assert b"toymq_epoch 7.0\n" in body
        assert b"toymq_publish_total" not in body


async def test_another_host_is_not_answered(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as rig:
        status, _, body = await rig.get("/healthz", host="evil.example")
        assert status == 403
        assert b"role" not in body
    assert caplog.messages == ["action=request token=- address=127.0.0.1 via=http result=FORBIDDEN"]


async def test_a_path_that_is_no_header_is_not_repeated() -> None:
    async with serving() as rig:
        answer = await rig.ask("--http", b"GET /\xe9 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"ocation" not in answer


async def test_when_it_stops_new_connections_wait_and_open_ones_end() -> None:
    async with serving() as rig:
        port = rig.listeners["--listen"].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.05)
        rig.standby.stop()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        _, waiting = await asyncio.open_connection("127.0.0.1", port)
        taken, _ = await asyncio.get_running_loop().sock_accept(rig.listeners["--listen"])
        taken.close()
        waiting.close()


async def test_silent_connections_are_few_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "SILENT_S", 0.1)
    monkeypatch.setattr(standby, "CONNECTIONS_MAX", 3)
    assert CONNECTIONS_MAX > 3
    async with serving() as rig:
        port = rig.listeners["--listen"].getsockname()[1]
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        for reader, writer in opened:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            writer.close()
        assert await rig.ask("--listen", b"PING\n") == b"ERR NOT_LEADER 10.0.0.1:6789\n"


def test_a_head_may_be_as_long_as_the_gateways() -> None:
    assert standby.HEAD_BYTES_MAX == HEAD_BYTES_MAX


async def test_nothing_is_accepted_for_amqp() -> None:
    """A standby does not listen for AMQP, so connections are refused."""
    async with serving() as rig:
        _, writer = await asyncio.open_connection("127.0.0.1", rig.listeners["--amqp"].getsockname()[1])
        connection, _ = rig.listeners["--amqp"].accept()  # it is still in the backlog
        connection.close()
        writer.close()
