"""Both clients over TLS, against the broker's own."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import toymq
from tests.support.certificates import CERT, KEY, client_context
from tests.support.in_process import serving
from toymq import sync
from toymq.options import Options
from toymq_py.net.certificates import Certificates


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with serving(tmp_path / "d", certificates=Certificates(CERT, KEY)) as served:
        yield f"toymqs://127.0.0.1:{served.tls_port}"


async def test_asyncio_over_tls(url: str) -> None:
    async with toymq.connect(url, ssl=client_context()) as mq:
        payloads = [b"%d" % n * 100 for n in range(3000)]
        receipts = await mq.pub_many("t", payloads)
        assert [receipt.msg_id for receipt in receipts] == list(range(3000))
        async with mq.sub("t", "c", auto_ack=True) as messages:
            assert [(await messages.next(5)).payload for _ in payloads] == payloads


async def test_blocking_over_tls(url: str) -> None:
    def talk() -> None:
        with sync.connect(url, ssl=client_context()) as mq:
            payloads = [b"%d" % n * 100 for n in range(3000)]
            assert [receipt.msg_id for receipt in mq.pub_many("t", payloads)] == list(range(3000))
            with mq.sub("t", "c", auto_ack=True) as messages:
                assert [messages.next(5).payload for _ in payloads] == payloads

    await asyncio.to_thread(talk)


async def test_a_certificate_that_nobody_vouches_for(url: str) -> None:
    """Found: the error was "no broker at", although there is one."""
    said = r"^the certificate of 127.* is not accepted: self-signed certificate: connect with ssl=ssl.create_default_context\("
    with pytest.raises(toymq.ConnectFailed, match=said):
        await toymq.connect(url)
    with pytest.raises(toymq.ConnectFailed, match=said):
        await asyncio.to_thread(sync.connect, url)


def never_again(*_: object) -> None:
    raise AssertionError("it tries again")


async def test_a_certificate_that_is_not_accepted_is_not_tried_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: a service that waits for its broker (``wait_s``) tried for all that time, and one that lost its broker tried for
    ever."""
    monkeypatch.setattr("toymq.link.log_wait", never_again)
    monkeypatch.setattr("toymq.sync.link.log_wait", never_again)
    with pytest.raises(toymq.CertificateRefused):
        await toymq.connect(url, wait_s=3600)
    with pytest.raises(toymq.CertificateRefused):
        await asyncio.to_thread(sync.connect, url, wait_s=3600)


async def test_a_client_gives_up_when_its_broker_has_another_certificate(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mq = await toymq.connect(url, ssl=client_context(), backoff_max_s=0.001, backoff_min_s=0.001)
    blocking = await asyncio.to_thread(sync.connect, url, ssl=client_context(), backoff_max_s=0.001, backoff_min_s=0.001)
    monkeypatch.setattr(Options, "tls_of", lambda *_: ssl.create_default_context())
    wire = mq._link._wire
    assert wire is not None
    wire.abort(toymq.ConnectionLost("as when the broker is started again"))
    with pytest.raises(toymq.CertificateRefused, match="is not accepted: self-signed certificate"):
        await mq.pub("t", b"x")
    blocking._link._drop_socket()
    with pytest.raises(toymq.CertificateRefused, match="is not accepted: self-signed certificate"):
        await asyncio.to_thread(blocking.pub, "t", b"x")
    await mq.close()
    await asyncio.to_thread(blocking.close)


async def test_tls_on_the_plain_port(tmp_path: Path) -> None:
    """Found: the error was "no broker at …: [SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)"."""
    async with serving(tmp_path / "d") as served:
        url = f"toymqs://127.0.0.1:{served.port}"
        said = rf"^127\.0\.0\.1:{served.port} does not speak TLS: name the broker's TLS port, or toymq:// where"
        with pytest.raises(toymq.ConnectFailed, match=said):
            await toymq.connect(url)
        with pytest.raises(toymq.ConnectFailed, match=said):
            await asyncio.to_thread(sync.connect, url)


def test_tls_options_without_tls() -> None:
    with pytest.raises(toymq.ConfigError, match="ssl needs toymqs"):
        toymq.connect("toymq://127.0.0.1", ssl=client_context())
