"""Who is let in, and which secrets leave the broker: the table of docs/security.md on a real process, and a scan of all
output."""

import asyncio
import json
import logging
import os
import re
import shutil
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

import toymq
from tests.support.broker_process import BrokerProcess, run
from tests.support.certificates import CERT, CLIENT_CERT, CLIENT_KEY, KEY, client_context
from tests.support.http_rig import NO_AUTHORITIES, HttpRig, listening
from tests.support.in_process import TIMEOUT_S, serving
from tests.support.tokens import EVERYTHING, authority, grants, hello, table, token
from toymq_py import daemon
from toymq_py.config.options import ServeOptions
from toymq_py.errors import AuthFailed, ConfigError, Forbidden
from toymq_py.net.certificates import Certificates
from toymqctl.cli import main as toymqctl

PAGE = Path(__file__).parents[2] / "docs" / "security.md"

# -- the table: a row is a way to connect, a column a token


Came = tuple[str, Callable[[], Awaitable[None]] | None]
"""What came of an attempt to connect, in the table's words; of one that is served, holds that it ends when its token goes."""


async def _tcp(rig: HttpRig, name: str | None, tls: ssl.SSLContext | None = None) -> Came:
    """Connect, say HELLO with the token of that name, and publish."""
    wire = await rig.served.connect(tls)
    try:
        first = await wire.ask(hello(name) if name is not None else b"HELLO 1\n")
    except (OSError, ssl.SSLError):
        return "no connection", None
    if not first.startswith(b"HELLO 1"):
        assert await wire.rest() == b"", "the connection ends with it"
        return first.split(b" ")[1].decode() if first else "no connection", None
    assert await wire.ask(b"PUB t - 1\nx\n") == b"OK 0"

    async def ends() -> None:
        assert (await wire.line()).startswith(b"ERR AUTH_FAILED")
        assert await wire.rest() == b""

    return "served", ends


async def _http(rig: HttpRig, name: str | None, tls: ssl.SSLContext | None = None) -> Came:
    """Publish with the token of that name, then read the topic's stream."""
    url = f"http://127.0.0.1:{rig.port}" if tls is None else f"https://127.0.0.1:{rig.tls_port}"
    headers = {"authorization": f"Bearer {token(name)}"} if name is not None else {}
    client = httpx.AsyncClient(base_url=url, headers=headers, verify=tls or NO_AUTHORITIES, timeout=TIMEOUT_S)
    async with AsyncExitStack() as leaving:
        await leaving.enter_async_context(client)
        try:
            answer = await client.post("/v1/topics/t/messages", content=b"x")
        except httpx.TransportError:
            return "no connection", None
        if answer.status_code != 201:
            assert answer.status_code == 401
            return str(answer.json()["code"]), None
        request = client.build_request("GET", "/v1/topics/t/stream", params={"from": "earliest"})
        stream = (await client.send(request, stream=True)).aiter_bytes()
        assert b"id: 0\n" in [await anext(stream), await anext(stream)][-1]
        left = leaving.pop_all()

    async def ends() -> None:
        async with left, asyncio.timeout(TIMEOUT_S):
            assert b"id:" not in b"".join([part async for part in stream])

    return "served", ends


Connect = Callable[[HttpRig, str | None], Awaitable[Came]]
WAYS: dict[str, tuple[str | None, Connect]] = {
    "TCP, plain": (None, _tcp),
    "TCP, TLS": (None, lambda rig, name: _tcp(rig, name, client_context())),
    "TCP, TLS, client certificate": (
        CLIENT_CERT, lambda rig, name: _tcp(rig, name, client_context(certificate=True))
    ),
    "TCP, TLS, client certificate missing": (CLIENT_CERT, lambda rig, name: _tcp(rig, name, client_context())),
    "HTTP, plain": (None, _http),
    "HTTP, TLS": (None, lambda rig, name: _http(rig, name, client_context())),
    "HTTP, TLS, client certificate": (
        CLIENT_CERT, lambda rig, name: _http(rig, name, client_context(certificate=True))
    ),
    "HTTP, TLS, client certificate missing": (CLIENT_CERT, lambda rig, name: _http(rig, name, client_context())),
}  # fmt: skip
"""By row: the CA of client certificates that the broker has, and how a client connects."""
TOKENS = {"no token": None, "good": "all", "bad": "stranger", "gone since a reload": "gone"}


def rows() -> dict[str, dict[str, str]]:
    """Return the page's table: way in, column, outcome."""
    lines = [[cell.strip(" `") for cell in line.strip("| ").split("|")] for line in PAGE.read_text().splitlines()]
    columns = next(cells for cells in lines if cells[1:] == list(TOKENS))
    return {cells[0]: dict(zip(columns[1:], cells[1:], strict=True)) for cells in lines if cells[0] in WAYS}


def test_the_table_has_every_way() -> None:
    assert rows().keys() == WAYS.keys()


@pytest.mark.parametrize("column", TOKENS)
@pytest.mark.parametrize("way", WAYS)
async def test_who_gets_in(tmp_path: Path, way: str, column: str) -> None:
    """Each way in has the outcome that the page's table says. When a token is removed, what was served under it ends."""
    client_ca, connect = WAYS[way]
    expected, name = rows()[way][column], TOKENS[column]
    tokens = authority(EVERYTHING, table("gone", 'publish = ["t"]\nsubscribe = ["t"]'))
    async with listening(tmp_path / "d", authority=tokens, certificates=Certificates(CERT, KEY, client_ca)) as rig:
        if name == "gone" and expected != "no connection":
            outcome, ends = await connect(rig, name)
            assert outcome == "served"
            assert ends is not None
            tokens.replace(grants(EVERYTHING))
            await ends()
        outcome, ends = await connect(rig, name)
        assert outcome == expected
        if ends is not None:
            tokens.replace(grants(table("another")))
            await ends()


# -- clients


@pytest.mark.parametrize("certificate", [False, True])
async def test_the_client_over_tls_with_a_token(tmp_path: Path, certificate: bool) -> None:
    certificates = Certificates(CERT, KEY, CLIENT_CERT if certificate else None)
    async with serving(tmp_path / "d", authority=authority(EVERYTHING), certificates=certificates) as served:
        url = f"toymqs://{token('all')}@127.0.0.1:{served.tls_port}"
        async with toymq.connect(url, ssl=client_context(certificate=certificate)) as mq:
            assert len(await mq.pub_many("t", [b"x" * 10_000] * 300)) == 300
            async with mq.sub("t", "c", auto_ack=True) as messages:
                assert [(await messages.next(5)).id for _ in range(300)] == list(range(300))
            assert token("all") not in repr(mq)
        with pytest.raises(AuthFailed):
            await toymq.connect(url.replace(token("all"), "wrong"), ssl=client_context(certificate=certificate))


async def test_a_client_whose_rights_shrink_hears_what_it_may_not(tmp_path: Path) -> None:
    """The client reconnects, and its subscription ends with the reason."""
    tokens = authority(EVERYTHING)
    async with (
        serving(tmp_path / "d", authority=tokens) as served,
        toymq.connect(f"toymq://{token('all')}@127.0.0.1:{served.port}") as mq,
    ):
        async with mq.sub("t", "c") as messages:
            tokens.replace(grants(table("all", 'publish = ["t"]')))
            with pytest.raises(Forbidden, match="may not subscribe to t"):
                await messages.next(5)
        assert (await mq.pub("t", b"x")).msg_id == 0


# -- the process, with signals


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A directory with an auth file and certificates that a test may change."""
    (tmp_path / "auth.toml").write_text(EVERYTHING + table("gone"))
    for source, name in ((CERT, "cert.pem"), (KEY, "key.pem"), (CLIENT_CERT, "ca.pem")):
        shutil.copy(source, tmp_path / name)
    return tmp_path


def options(files: Path, *, client_ca: bool = False) -> list[str]:
    tls = ["--tls-listen", "127.0.0.1:0", "--tls-cert", str(files / "cert.pem"), "--tls-key", str(files / "key.pem")]
    return ["--auth-file", str(files / "auth.toml"), *tls, *(["--tls-client-ca", str(files / "ca.pem")] if client_ca else [])]


def test_hanging_up_reads_tokens_and_certificates_again(files: Path) -> None:
    """SIGHUP loads them. A bad file changes nothing and is logged; clients whose token is still valid notice nothing."""
    with BrokerProcess(files / "d", *options(files)) as broker, broker.connect(client_context()) as stays:
        assert stays.ask(hello("all")).startswith(b"HELLO 1")
        assert stays.ask(b"PUB t - 1\nx\n") == b"OK 0"
        with broker.connect() as gone:
            assert gone.ask(hello("gone")).startswith(b"HELLO 1")
            (files / "auth.toml").write_text(EVERYTHING)
            shutil.copy(CLIENT_CERT, files / "cert.pem")
            shutil.copy(CLIENT_KEY, files / "key.pem")
            broker.hang_up()
            assert gone.line().startswith(b"ERR AUTH_FAILED")
            assert gone.at_end()
        trusting = client_context()
        trusting.load_verify_locations(CLIENT_CERT)
        trusting.check_hostname = False
        with broker.connect(trusting) as newer:
            assert isinstance(newer.socket, ssl.SSLSocket)
            shown = newer.socket.getpeercert(binary_form=True)
            assert shown == ssl.PEM_cert_to_DER_cert(Path(CLIENT_CERT).read_text())
        assert stays.ask(b"PUB t - 1\nx\n") == b"OK 1"
        (files / "auth.toml").write_text(f"[[token]]\nname = 'all'\nsha256 = '{token('all')}'\n")
        (files / "key.pem").write_text("nothing")
        broker.hang_up()
        assert stays.ask(b"PUB t - 1\nx\n") == b"OK 2"
        broker.stop()
        code, errors = broker.ended()
    assert code == 0
    assert "line 3: invalid sha256: write the token's SHA-256 digest, 64 hexadecimal digits; the tokens that were" in errors
    assert "is not a PEM file: no line ends with PRIVATE KEY-----; the certificates that were read before stay" in errors
    assert token("all") not in errors


def _toymqctl(broker: BrokerProcess, *arguments: str, tls: bool = True, **environment: str) -> Result:
    url = f"toymqs://127.0.0.1:{broker.tls_port}" if tls else f"127.0.0.1:{broker.port}"
    return CliRunner().invoke(toymqctl, ["--url", url, *arguments], env=environment)


def test_toymqctl_over_tls(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BrokerProcess(files / "d", *options(files, client_ca=True)) as broker:
        certificates = ["--tls-ca", CERT, "--tls-cert", CLIENT_CERT, "--tls-key", CLIENT_KEY]
        monkeypatch.setenv("TOYMQ_TOKEN", token("all"))
        done = _toymqctl(broker, *certificates, "pub", "t", "hello")
        assert (done.exit_code, done.stdout) == (0, "OK 0\n"), done.output
        variables = {"TOYMQ_TLS_CA": CERT, "TOYMQ_TLS_CERT": CLIENT_CERT, "TOYMQ_TLS_KEY": CLIENT_KEY}
        assert _toymqctl(broker, "ping", **variables).exit_code == 0
        for arguments, says in (
            (["ping"], "with --tls-ca or TOYMQ_TLS_CA"),
            (["--tls-ca", CERT, "ping"], "requires a client certificate"),
            (["--tls-ca", CERT, "ping"], "name a client certificate with --tls-cert and --tls-key"),
            (["--tls-ca", "nothing.pem", "ping"], "--tls-ca: cannot read nothing.pem: No such file"),
            (["--tls-ca", KEY, "ping"], "--tls-ca: "),
            (["--tls-cert", CERT, "--tls-key", CLIENT_KEY, "ping"], "cannot load a certificate and key from"),
            (["--tls-key", KEY, "ping"], "--tls-key needs --tls-cert"),
        ):
            refused = _toymqctl(broker, *arguments)
            assert refused.exit_code in (1, 2)
            assert says in refused.stderr
            assert refused.stderr.count("\n") == 1, refused.stderr
        plain = _toymqctl(broker, "--tls-ca", CERT, "ping", tls=False)
        assert (plain.exit_code, plain.stdout) == (2, "")
        assert "--tls-ca belongs to a broker with TLS" in plain.stderr


def test_the_wrong_port_is_said_in_one_line(files: Path) -> None:
    """TLS to the plain port, and plain text to the TLS port: each client names the mistake at once."""
    with BrokerProcess(files / "d", *options(files)) as broker:
        for url, says in (
            (f"toymqs://127.0.0.1:{broker.port}", "does not speak TLS: name the broker's TLS port, or toymq://"),
            (f"toymq://127.0.0.1:{broker.tls_port}", "BAD_FRAMING: this port speaks TLS: use toymqs://"),
        ):
            refused = CliRunner().invoke(toymqctl, ["--url", url, "ping"])
            assert refused.exit_code == 1
            assert says in refused.stderr
            assert refused.stderr.count("\n") == 1, refused.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--auth-file", "nothing.toml"], "cannot read the auth file nothing.toml: No such file"),
        (["--auth-file", CERT], "is not TOML"),
        (["--tls-listen", "127.0.0.1:0"], "--tls-listen needs --tls-cert and --tls-key"),
        (["--tls-cert", CERT], "--tls-cert does nothing without --tls-listen"),
        (["--tls-client-ca", CERT], "--tls-client-ca does nothing without --tls-listen"),
        (["--dialect", "tinymq"], "--dialect does nothing without --http or --https"),
        (["--private-webhooks"], "--private-webhooks does nothing without --http or --https"),
        (["--tls-listen", "0.0.0.0:0", "--tls-cert", CERT, "--tls-key", KEY], "--tls-listen: 0.0.0.0 can be reached"),
        (["--tls-listen", "127.0.0.1:0", "--tls-cert", CERT, "--tls-key", CLIENT_KEY], "is not that of the certificate"),
        (["--listen", "127.0.0.1:0", "--tls-listen", "192.0.2.1:1", "--tls-cert", CERT, "--tls-key", KEY, "--insecure-public"],
         "cannot listen on 192"),
        (["--listen", "[::]:0"], "--listen: :: can be reached"),
        (["--listen", "192.0.2.1:0"], "--listen: 192.0.2.1 can be reached"),
    ],
)
def test_serve_refuses_what_is_not_safe(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = run("serve", "--data-dir", str(tmp_path / "d"), *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "d").exists(), "nothing was opened"


def test_what_counts_is_the_address_that_a_name_has(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **words: resolve("0.0.0.0", *rest, **words))
    chosen = ServeOptions(listen="broker.example:0")
    with ExitStack() as bound, pytest.raises(ConfigError, match=r"--listen: 0\.0\.0\.0 can be reached from other machines"):
        daemon._bind("--listen", chosen.listen, chosen, bound)


def test_a_public_listener_with_tokens_is_allowed_and_warned_of(files: Path) -> None:
    with BrokerProcess(files / "d", *options(files), "--listen", "0.0.0.0:0") as broker:
        with broker.connect() as wire:
            assert wire.ask(b"PING\n").startswith(b"ERR AUTH_REQUIRED")
        broker.stop()
        _, errors = broker.ended()
    assert "tokens and messages cross the network in the clear" in errors


# -- secrets


def test_no_secret_in_anything_that_is_said(
    files: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Scan all output of a session, its clients and its broker at the most verbose level, and what the process list and STATS
    show."""
    caplog.set_level(logging.DEBUG)
    secret = token("all")
    said: list[str] = []
    levels = ["--log-level", "debug,wire=debug"]
    given = [*options(files), *levels, "--http", "127.0.0.1:0", "--dialect", "tinymq"]
    with BrokerProcess(files / "d", *given, executed=True) as broker:  # its command line is looked at
        for header in (f"Bearer {secret}x", f"Basic {secret}", secret, f"Bearer {secret} {secret}"):
            answer = httpx.get(f"{broker.http}v1/topics", headers={"authorization": header}, verify=NO_AUTHORITIES)
            assert answer.status_code == 401
            said.append(f"{answer.headers} {answer.text}")
        for login in ({"token": secret + "x"}, {"token": secret + ";"}, {"tokn": secret}, {secret: "token"}, [secret], secret):
            answer = httpx.post(f"{broker.http}v1/login", json=login, verify=NO_AUTHORITIES)
            assert answer.status_code in (400, 401, 422)
            said.append(f"{answer.headers} {answer.text}")
        for path in ("metrics", "v1/stats", "v1/login", "v1/topics", "api/stats"):
            answer = httpx.get(broker.http + path, headers={"authorization": f"Bearer {secret}"}, verify=NO_AUTHORITIES)
            assert answer.status_code == 200, path
            said.append(answer.text)
        url = f"127.0.0.1:{broker.port}"
        with broker.connect() as wire:
            said += [wire.ask(line).decode() for line in (b"HELLO 1 auth=%b more=1\n" % secret.encode(),)]
        for line in (
            f"HELLO 1 auht={secret}\n", f"HELLO 1 {secret}\n", f"HELLO {secret}\n", f"HELLO 1 auth={secret} auth={secret}\n",
            f"auth={secret}\n", f"HELLO 1 auth={secret}x\n",
        ):  # fmt: skip
            with broker.connect() as wire:
                said.append(wire.ask(line.encode()).decode())
        with broker.connect() as wire:
            said.append(wire.ask(hello("all")).decode())
            for line in (f"HELLO 1 auth={secret}\n", f"HELLO 1 auht={secret}\n", f"HELLO 1 {secret}\n", f"HELLO {secret}\n"):
                said.append(wire.ask(line.encode()).decode())
            header = wire.ask(b"STATS\n")
            said.append(wire.read(int(header.split()[1]) + 1).decode())
        monkeypatch.setenv("TOYMQ_TOKEN", secret)
        for arguments in (["--url", url, "doctor"], ["--url", url, "stats"], ["--url", url, "delete", "no"]):
            said.append(CliRunner().invoke(toymqctl, arguments).output)
        monkeypatch.setenv("TOYMQ_TOKEN", secret + "x")
        said.append(CliRunner().invoke(toymqctl, ["--url", url, "ping"]).output)
        monkeypatch.delenv("TOYMQ_TOKEN")
        for bad in (f"toymq://{secret}@{url}x", f"toymq://{secret}@nowhere.invalid", f"toymq://{secret}:x@{url}"):
            said.append(CliRunner().invoke(toymqctl, ["ping"], env={"TOYMQ_URL": bad}).output)
        with toymq.sync.connect(f"toymq://{secret}@{url}") as mq:
            said += [repr(mq), str(mq), json.dumps(mq.stats())]
        said.append(Path(f"/proc/{broker.pid}/cmdline").read_text() if os.path.exists("/proc") else "")  # noqa: PTH110
        broker.stop()
        _, errors = broker.ended()
    said += [errors, caplog.text]
    assert len(said) > 20
    for text in said:
        assert secret[:8] not in text, text
    refused = "toymq_py.audit: action=hello token=- address=127.0.0.1 .* result=AUTH_FAILED"
    assert re.search(refused, errors), "the log is one, and tells of refusals"


