"""The gateway over TLS: peers that do not speak TLS, that send nothing, or that exceed the limit; and a real process, on
uvloop."""

import asyncio
import json
import random
import shutil
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from tests.support.broker_process import BrokerProcess, run
from tests.support.certificates import CERT, CLIENT_CERT, CLIENT_KEY, KEY, NAMED_CERT, NAMED_KEY, client_context
from tests.support.http_rig import HttpRig, listening
from tests.support.in_process import TIMEOUT_S
from tests.support.sim_disk import SimDisk
from tests.support.tokens import EVERYTHING, authority, token
from toymq_py.gateway import tls_listener as tls
from toymq_py.net.certificates import Certificates

DIR = "/data/d"


def disk() -> SimDisk:
    return SimDisk(random.Random(1))


def certificates() -> Certificates:
    return Certificates(CERT, KEY)


async def wire(rig: HttpRig, *, shakes_hands: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection to the TLS port."""
    return await asyncio.open_connection("127.0.0.1", rig.tls_port, ssl=client_context() if shakes_hands else None)


async def test_who_speaks_no_tls_is_told_so() -> None:
    async with listening(DIR, fs=disk(), certificates=certificates()) as rig, asyncio.timeout(TIMEOUT_S):
        reader, writer = await wire(rig)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["detail"] == "this port expects TLS: use https://"


async def test_a_client_that_is_gone_behind_polls_sent_ahead_is_seen() -> None:
    async with listening(DIR, fs=disk(), certificates=certificates()) as rig, asyncio.timeout(TIMEOUT_S):
        _, writer = await wire(rig, shakes_hands=True)
        writer.write(b"GET /v1/topics/t/messages?consumer=c&wait_s=60 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5)
        await rig.until_polled("t")
        writer.close()
        await rig.until(lambda: not rig.broker.quotas.connections)
        await rig.publish("t", "a")
        assert [message["attempt"] for message in await rig.lease("t")] == [1]


async def test_who_says_nothing_or_stops_halfway_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "HANDSHAKE_S", 0.01)
    async with listening(DIR, fs=disk(), certificates=certificates()) as rig, asyncio.timeout(TIMEOUT_S):
        for said in (b"", b"\x16\x03\x01\x02\x00\x01"):
            reader, writer = await wire(rig)
            writer.write(said)
            assert await reader.read() == b"", "the connection ends"
            writer.close()


async def test_handshakes_that_never_end_give_way() -> None:
    async with listening(DIR, fs=disk(), certificates=certificates(), max_connections=2) as rig, asyncio.timeout(TIMEOUT_S):
        silent = [await wire(rig) for _ in range(20)]
        for reader, _ in silent[:18]:
            assert await reader.read() == b"", "the oldest is closed"
        async with httpx.AsyncClient(base_url=f"https://127.0.0.1:{rig.tls_port}", verify=client_context()) as client:
            assert (await client.get("/healthz")).status_code == 200
        for _, writer in silent:
            writer.close()


async def test_handshakes_that_have_begun_give_way_to_others() -> None:
    """Found by a trial: each takes 50 KB, and 4,000 clients that sent one byte killed a broker in 192 MiB."""
    options = {"certificates": certificates(), "max_held_bytes": 1 << 20}
    async with listening(DIR, fs=disk(), **options) as rig, asyncio.timeout(TIMEOUT_S):  # type: ignore[arg-type]
        begun = [await wire(rig) for _ in range(20)]
        for _, each in begun:
            each.write(b"\x16")
        await rig.until(lambda: sum(reader.at_eof() for reader, _ in begun) == 4)  # there is room for sixteen
        rig.broker.quotas.memory_high = True
        reader, writer = await wire(rig)
        writer.write(b"\x16")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert sum(reader.at_eof() for reader, _ in begun) == 4
        rig.broker.quotas.memory_high = False
        async with httpx.AsyncClient(base_url=f"https://127.0.0.1:{rig.tls_port}", verify=client_context()) as client:
            assert (await client.get("/healthz")).status_code == 200
        for _, each in (*begun, (reader, writer)):
            each.close()


async def test_a_connection_too_many_is_told_so() -> None:
    async with listening(DIR, fs=disk(), certificates=certificates(), max_connections=1) as rig, asyncio.timeout(TIMEOUT_S):
        busy = await rig.served.connect()
        assert await busy.ask(b"PING\n") == b"PONG"
        reader, writer = await wire(rig, shakes_hands=True)
        answer = await reader.read()
        writer.close()
        silent = [await wire(rig) for _ in range(tls.REFUSED_MAX + 1)]
        ends = [asyncio.ensure_future(reader.read()) for reader, _ in silent]
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        assert [end.result() for end in done] == [b""], "only some are shaken hands with to be told"
        for _, writer in silent:
            writer.close()
        await asyncio.wait(ends)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"TOO_MANY_CONNECTIONS" in answer


async def test_the_logins_cookie_is_for_tls_only() -> None:
    tokens = authority(EVERYTHING)
    async with listening(DIR, fs=disk(), certificates=certificates(), authority=tokens) as rig:
        cookies = []
        for url in (f"http://127.0.0.1:{rig.port}", f"https://127.0.0.1:{rig.tls_port}"):
            async with httpx.AsyncClient(base_url=url, verify=client_context()) as client:
                answer = await client.post("/v1/login", json={"token": token("all")})
                cookies.append(answer.headers["set-cookie"])
                assert (await client.get("/v1/topics")).status_code == 200, "the cookie does"
                if (clear := cookies[0].partition(";")[0]) and len(cookies) == 2:
                    client.cookies.clear()
                    answer = await client.get("/v1/topics", headers={"cookie": clear})
                    assert answer.json()["code"] == "AUTH_REQUIRED", "over TLS only the one that no other page can set"
    assert ["; Secure" in cookie for cookie in cookies] == [False, True]
    assert [cookie.startswith("__Host-") for cookie in cookies] == [False, True]
    assert all("; Path=/;" in cookie and "Domain" not in cookie for cookie in cookies)


@pytest.mark.parametrize("tokens", [True, False])
async def test_without_tokens_a_name_is_the_certificates_or_another_sites(tokens: bool) -> None:
    """Found by a trial: over TLS any name was served, one whose owner's DNS leads here, too. A browser warns of that, and users
    of a self-signed certificate click through it. With tokens a page of another site has none."""
    context = ssl.create_default_context(cafile=NAMED_CERT)
    more: dict[str, Any] = {"authority": authority(EVERYTHING) if tokens else None, "allowed_hosts": ["toymq"]}
    async with listening(DIR, fs=disk(), certificates=Certificates(NAMED_CERT, NAMED_KEY), **more) as rig:
        found = {}
        for url in (f"http://127.0.0.1:{rig.port}", f"https://127.0.0.1:{rig.tls_port}"):
            async with httpx.AsyncClient(base_url=url, verify=context) as client:
                for host in ("billing.example", "toymq", "127.0.0.1", "evil.example"):
                    found[url[:5], host] = (await client.get("/healthz", headers={"host": host})).status_code
    refused = [("http:", "evil.example"), *([] if tokens else [("https", "evil.example")])]
    assert [asked for asked, status in found.items() if status != 200] == refused
    assert {found[asked] for asked in refused} == {403}


async def test_a_page_without_tls_is_another_site() -> None:
    async with listening(DIR, fs=disk(), certificates=certificates()) as rig:
        host = f"127.0.0.1:{rig.tls_port}"
        async with httpx.AsyncClient(base_url=f"https://{host}", verify=client_context()) as client:
            for scheme, status in (("https", 201), ("http", 403)):
                headers = {"origin": f"{scheme}://{host}"}
                answer = await client.post("/v1/topics/t/messages", content=b"x", headers=headers)
                assert answer.status_code == status


async def test_a_large_answer_arrives_whole_and_the_connection_ends() -> None:
    """The answer is larger than any buffer, and its client reads it late."""
    payload = bytes(range(256)) * 4096
    async with listening(DIR, fs=disk(), certificates=certificates()) as rig, asyncio.timeout(TIMEOUT_S):
        assert (await rig.ask("POST", "/v1/topics/t/messages", content=payload)).status_code == 201
        reader, writer = await wire(rig, shakes_hands=True)
        writer.write(b"GET /v1/topics/t/log HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert f"content-length: {len(body)}".encode() in head.lower()
    assert len(body) > len(payload)


def test_a_process_and_its_certificates_read_again(tmp_path: Path) -> None:
    """Clients stay connected, later ones get the new certificate, and a shutdown waits for no idle client."""
    for source, name in ((CERT, "cert.pem"), (KEY, "key.pem")):
        shutil.copy(source, tmp_path / name)
    options = ["--https", "127.0.0.1:0", "--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")]
    with BrokerProcess(tmp_path / "d", *options, "--shutdown-timeout", "1h") as broker:
        assert broker.https
        assert not broker.http
        with httpx.Client(base_url=broker.https, verify=client_context()) as stays:
            assert stays.post("/v1/topics/t/messages", content=b"x").json() == {"id": 0, "duplicate": False}
            shutil.copy(CLIENT_CERT, tmp_path / "cert.pem")
            shutil.copy(CLIENT_KEY, tmp_path / "key.pem")
            broker.hang_up()
            port = int(broker.https.rstrip("/").rpartition(":")[2])
            newer = ssl.PEM_cert_to_DER_cert(Path(CLIENT_CERT).read_text())
            while ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port), timeout=TIMEOUT_S)) != newer:
                pass  # the signal is on its way
            assert stays.post("/v1/topics/t/messages", content=b"x").json() == {"id": 1, "duplicate": False}
            trusting = ssl.create_default_context(cafile=CLIENT_CERT)
            trusting.check_hostname = False
            with connect(f"wss://127.0.0.1:{port}/v1/topics/t/ws", ssl=trusting) as socket:
                socket.send('{"op": "publish", "payload": "y"}')
                assert json.loads(socket.recv(TIMEOUT_S))["id"] == 2
            broker.stop()
            code, errors = broker.ended()
    assert (code, "Traceback" in errors) == (0, False), errors


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--https", "127.0.0.1:0"], "--https needs --tls-cert and --tls-key"),
        (["--tls-cert", CERT], "--tls-cert does nothing without --tls-listen or --https or --amqps"),
        (["--http", "0.0.0.0:0"], "--http: 0.0.0.0 can be reached from other machines and no token is asked for"),
        (
            ["--https", "0.0.0.0:0", "--tls-cert", CERT, "--tls-key", KEY],
            "--https: 0.0.0.0 can be reached from other machines and no token is asked for",
        ),
        (["--https", "127.0.0.1:0", "--tls-cert", KEY, "--tls-key", KEY], f"the certificate {KEY} is not a PEM file"),
    ],
)
def test_serve_refuses(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = run("serve", "--data-dir", str(tmp_path / "d"), *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "d").exists(), "nothing was opened"


def test_a_client_that_was_refused_and_goes_on_sending_is_cut_off(tmp_path: Path) -> None:
    """Found: uvloop waited 30 s for the answer to its close, and decrypted all that arrived: others' publishes took a
    second."""
    context = client_context()
    with BrokerProcess(tmp_path / "d", "--https", "127.0.0.1:0", "--tls-cert", CERT, "--tls-key", KEY) as broker:
        assert broker.https
        port = int(broker.https.rstrip("/").rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as flooding,
        ):
            assert is_cut_off(flooding)


def is_cut_off(flooding: ssl.SSLSocket) -> bool:
    ends = time.perf_counter() + 20
    try:
        while time.perf_counter() < ends:
            flooding.sendall(b"\r\n" * 10_000)
    except OSError:
        return True
    return False
