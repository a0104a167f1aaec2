"""What is kept of a client's words at its login. ``tests/e2e/amqp`` has the handshakes of clients."""

from types import SimpleNamespace

from toymq_py.amqp.handshake import NAME_CHARS_MAX, Handshake
from toymq_py.amqp.login import USER_CHARS_MAX, Login
from toymq_py.amqp.methods import Method


def test_the_names_of_a_connection_and_its_user_are_cut() -> None:
    """Each of ten thousand connections could keep 128 KiB, and a list of a thousand had them all."""
    handshake = Handshake(Login(None), None, SimpleNamespace(default=None))  # type: ignore[arg-type]
    said = {"connection_name": "c" * 100_000}
    handshake.apply(
        Method((10, 11), "connection.start-ok", {
            "client_properties": said, "mechanism": "PLAIN", "response": b"\0" + b"u" * 100_000 + b"\0p", "locale": "en_US",
        })
    )  # fmt: skip
    assert handshake.client_name == "c" * NAME_CHARS_MAX
    assert handshake.rights.user == "u" * USER_CHARS_MAX
