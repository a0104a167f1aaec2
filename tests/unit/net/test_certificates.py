"""The broker's TLS certificate and the CA of its clients. Contract: reliability.md, "Security"."""

import shutil
from pathlib import Path

import pytest

from tests.support.certificates import (
    CERT,
    CLIENT_CERT,
    CLIENT_KEY,
    ENCRYPTED_KEY,
    HOSTS_CERT,
    KEY,
    NAMED_CERT,
    NAMED_KEY,
    NAMELESS_CERT,
    client_context,
)
from tests.support.sim_served import SimServed, SimTlsClient
from toymq_py.errors import ConfigError
from toymq_py.net.certificates import Certificates, host_names_of, names_of


@pytest.mark.parametrize(
    ("cert", "key", "ca", "says"),
    [
        (CERT, CLIENT_KEY, None, "the key .*client-key.pem is not that of the certificate .*cert.pem"),
        ("nothing.pem", KEY, None, "cannot read the certificate nothing.pem: No such file"),
        (CERT, "nothing.pem", None, "cannot read the key nothing.pem: No such file"),
        (CERT, KEY, "nothing.pem", "cannot read the CA certificate file nothing.pem: No such file"),
        ("/", KEY, None, "cannot read the certificate /: Is a directory"),
        (KEY, KEY, None, "the certificate .*key.pem is not a PEM file"),
        (CERT, CERT, None, "the key .*cert.pem is not a PEM file"),
        (CERT, KEY, KEY, "the CA certificate file .*key.pem is not a PEM file"),
        (CERT, ENCRYPTED_KEY, None, "encrypted-key.pem is encrypted; the broker takes one without a password"),
    ],
)
def test_what_is_wrong_is_said(cert: str, key: str, ca: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Certificates(cert, key, ca)


@pytest.mark.parametrize("which", ["cert", "key", "ca"])
def test_a_damaged_file_is_said(tmp_path: Path, which: str) -> None:
    files = {"cert": CERT, "key": KEY, "ca": CLIENT_CERT}
    damaged = tmp_path / "damaged.pem"
    lines = Path(files[which]).read_text().splitlines()
    damaged.write_text("\n".join([lines[0], lines[1][:-3], *lines[2:]]))
    files[which] = str(damaged)
    with pytest.raises(ConfigError, match=r"damaged.pem.* is damaged\Z"):
        Certificates(files["cert"], files["key"], files["ca"])


def test_another_certificate_is_shown_from_then_on(tmp_path: Path) -> None:
    """Connected clients stay. A bad file changes nothing, and clients of a CA that was removed are refused."""
    cert, key, ca = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    for source, target in ((CERT, cert), (KEY, key), (CLIENT_CERT, ca)):
        shutil.copy(source, target)
    certificates = Certificates(str(cert), str(key), str(ca))
    context = client_context(certificate=True)
    with SimServed(certificates=certificates) as served:

        def shown() -> object:
            client = served.tls_client(context, b"PING\n")
            served.advance(1)
            assert isinstance(client, SimTlsClient)
            return client.tls.getpeercert(binary_form=True) if client.lines() == [b"PONG"] else client.failure

        stays = served.tls_client(context, b"PING\n")
        first = shown()
        assert isinstance(first, bytes)

        cert.write_text("nothing")
        with pytest.raises(ConfigError):
            certificates.reload()
        assert shown() == first

        shutil.copy(CLIENT_CERT, cert)
        shutil.copy(CLIENT_KEY, key)
        context.check_hostname = False
        context.load_verify_locations(CLIENT_CERT)
        certificates.reload()
        assert shown() not in (first, None)

        shutil.copy(CERT, ca)
        certificates.reload()
        assert not isinstance(shown(), bytes)
        stays.send(b"PING\n")
        served.advance(1)
        assert stays.lines() == [b"PONG", b"PONG"]


def test_the_names_in_a_certificate_are_its_cn_and_the_others() -> None:
    found = {
        "subject": ((("countryName", "AT"),), (("commonName", "billing"),)),
        "subjectAltName": (("DNS", "billing.example"), ("IP Address", "127.0.0.1"), ("DNS", "billing"), ("email", "a@b")),
    }
    assert names_of(found) == ("billing", "billing.example", "a@b")
    assert names_of({}) == ()


def test_the_host_names_of_a_certificate() -> None:
    """Not its CN, which browsers do not look at, nor addresses and e-mail, nor those of the intermediates behind it."""
    pem = f"before\n{Path(HOSTS_CERT).read_text()}{Path(CERT).read_text()}"
    assert host_names_of(pem) == {"queue.example", "*.wild.example", *(f"{'n' * 30}{number}.example" for number in range(1, 9))}
    assert host_names_of(Path(NAMELESS_CERT).read_text()) == frozenset()
    assert host_names_of("-----BEGIN X509 CERTIFICATE-----") == frozenset()


def test_the_host_names_are_those_of_the_file_that_was_read_last(tmp_path: Path) -> None:
    for name, source in (("cert.pem", CERT), ("key.pem", KEY)):
        shutil.copy(source, tmp_path / name)
    certificates = Certificates(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))
    assert certificates.host_names == {"localhost"}
    for name, source in (("cert.pem", NAMED_CERT), ("key.pem", NAMED_KEY)):
        shutil.copy(source, tmp_path / name)
    certificates.reload()
    assert certificates.host_names == {"billing.example", "shipping"}
