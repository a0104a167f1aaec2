"""Both clients over TLS: a server that ends it and forwards to a real broker. The broker itself speaks none yet."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import toymq_client as toymq
from tests.support.in_process import serving
from toymq_client import sync

CERTIFICATES = Path(__file__).parents[1] / "support" / "tls"
CERTIFICATE, KEY = CERTIFICATES / "cert.pem", CERTIFICATES / "key.pem"


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except (ConnectionError, ssl.SSLError):
        pass
    finally:
        writer.close()


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE, KEY)
    async with serving(tmp_path / "d") as broker:

        async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            to_broker = await asyncio.open_connection("127.0.0.1", broker.port)
            await asyncio.gather(_copy(reader, to_broker[1]), _copy(to_broker[0], writer))

        server = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context)
        async with server:
            yield f"toymqs://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def trusting() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=CERTIFICATE)


async def test_asyncio_over_tls(url: str) -> None:
    async with toymq.connect(url, ssl=trusting()) as mq:
        payloads = [b"%d" % n * 100 for n in range(3000)]
        receipts = await mq.pub_many("t", payloads)
        assert [receipt.msg_id for receipt in receipts] == list(range(3000))
        async with mq.sub("t", "c", auto_ack=True) as messages:
            assert [(await messages.next(5)).payload for _ in payloads] == payloads


async def test_blocking_over_tls(url: str) -> None:
    def talk() -> None:
        with sync.connect(url, ssl=trusting()) as mq:
            payloads = [b"%d" % n * 100 for n in range(3000)]
            assert [receipt.msg_id for receipt in mq.pub_many("t", payloads)] == list(range(3000))
            with mq.sub("t", "c", auto_ack=True) as messages:
                assert [messages.next(5).payload for _ in payloads] == payloads

    await asyncio.to_thread(talk)


async def test_a_certificate_that_nobody_vouches_for(url: str) -> None:
    with pytest.raises(toymq.ConnectFailed, match=r"(?i)certificate"):
        await toymq.connect(url)
    with pytest.raises(toymq.ConnectFailed, match=r"(?i)certificate"):
        await asyncio.to_thread(sync.connect, url)


def test_tls_options_without_tls() -> None:
    with pytest.raises(toymq.ConfigError, match="an SSL context belongs to toymqs"):
        toymq.connect("toymq://127.0.0.1", ssl=trusting())
