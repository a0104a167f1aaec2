"""Connections of readers and writers with tokens and TLS, to a real broker; errors name the option."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.certificates import CERT, CLIENT_CERT, CLIENT_KEY, KEY
from tests.support.tokens import EVERYTHING, token
from toymq import CertificateRefused, ConnectFailed
from toymq.message import Sequenced
from toymq_py.errors import RequestError
from toymq_spark.broker import RetryingClient
from toymq_spark.datasource import ToymqDataSource
from toymq_spark.errors import OptionError
from toymq_spark.options import BrokerAddress, parse_sink
from toymq_spark.publishing import BrokerPublisher
from toymq_spark.schema import source_schema

CA = {"toymq.tls.ca": CERT}
OURS = {"toymq.tls.cert": CLIENT_CERT, "toymq.tls.key": CLIENT_KEY}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access")


@pytest.fixture(scope="module")
def broker(place: Path) -> Iterator[BrokerProcess]:
    """Run a broker that requires a client certificate and a token."""
    auth = place / "auth.toml"
    auth.write_text(EVERYTHING)
    options = ["--auth-file", str(auth), "--tls-listen", "127.0.0.1:0", "--tls-cert", CERT, "--tls-key", KEY]
    with BrokerProcess(place / "d", *options, "--tls-client-ca", CLIENT_CERT) as running:
        yield running


@pytest.fixture(scope="module")
def token_file(place: Path) -> str:
    file = place / "token"
    file.write_text(token("all") + "\n")
    return str(file)


def published(given: dict[str, str]) -> int:
    publisher = BrokerPublisher(parse_sink({**given, "topic": "t"}, "batch").address, lambda _: None)
    try:
        (receipt,) = publisher.publish("t", [Sequenced("p", 1, b"x")])
        return receipt.msg_id
    finally:
        publisher.close()


def values(given: dict[str, str]) -> list[bytes]:
    reader = ToymqDataSource({**given, "subscribe": "t"}).reader(source_schema(include_headers=False))
    return [value for part in reader.partitions() for batch in reader.read(part) for value in batch["value"].to_pylist()]


def test_a_certificate_that_is_not_accepted_is_not_tried_again() -> None:
    """Found: it was retried ``num_retries`` times, because a certificate error is an OSError, too."""
    paused: list[float] = []
    client = RetryingClient(BrokerAddress("toymqs://h:1"), paused.append)
    assert not client.pause(CertificateRefused("self-signed certificate"), 1, "publish")
    assert client.pause(ConnectFailed("no broker at h:1"), 1, "publish")
    assert len(paused) == 1


def test_written_and_read_with_a_token_file_over_tls(broker: BrokerProcess, token_file: str) -> None:
    everything = {"toymq.token.file": token_file, **CA, **OURS}
    for address in ({"url": f"toymqs://127.0.0.1:{broker.tls_port}"},
                    {"toymq.bootstrap.servers": f"127.0.0.1:{broker.tls_port}", "toymq.tls": "true"}):  # fmt: skip
        assert published({**address, **everything}) == 0
        assert values({**address, **everything}) == [b"x"]
    plain = {"url": f"toymq://127.0.0.1:{broker.port}"}
    assert values({**plain, "toymq.token.file": token_file}) == [b"x"]
    assert values({**plain, "toymq.token": token("all")}) == [b"x"]


def test_refused_access_names_the_option(broker: BrokerProcess, place: Path, token_file: str) -> None:
    def refused(error: type[Exception], match: str, **options: str) -> None:
        address = {"url": f"toymqs://127.0.0.1:{broker.tls_port}", "fetchOffset.numRetries": "0"}
        given = {"toymq.token.file": token_file, **CA, **OURS, **options}
        with pytest.raises(error, match=match):
            values({**address, **{name: value for name, value in given.items() if value}})

    junk = place / "junk"
    junk.write_text("no PEM file, and two words")
    refused(ConnectFailed, "(?i)certificate", **{"toymq.tls.ca": ""})
    refused(OptionError, "option toymq.tls.ca: cannot read /nowhere", **{"toymq.tls.ca": "/nowhere"})
    refused(OptionError, "option toymq.tls.ca: cannot load a certificate from .*: use a", **{"toymq.tls.ca": str(junk)})
    refused(OptionError, "option toymq.tls.cert: cannot load .*: use the PEM files", **{"toymq.tls.key": KEY})
    refused(OptionError, "option toymq.tls.cert: cannot load .* no toymq.tls.key", **{"toymq.tls.key": ""})
    refused(OptionError, "option toymq.token.file: .* one word of printable ASCII", **{"toymq.token.file": str(junk)})
    refused(OptionError, "option toymq.token.file: cannot read", **{"toymq.token.file": str(place / "none")})
    wrong = place / "wrong"
    wrong.write_text("stranger")
    refused(RequestError, "not in the auth file", **{"toymq.token.file": str(wrong)})
