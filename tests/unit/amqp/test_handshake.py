"""Which of a client's login data are kept. ``tests/e2e/amqp`` has the handshakes of clients."""

from types import SimpleNamespace

from toymq_py.amqp.handshake import Handshake
from toymq_py.amqp.login import USER_CHARS_MAX, Login
from toymq_py.amqp.methods import Method
from toymq_py.net.open_connections import NAME_CHARS_MAX


def test_the_names_of_a_connection_and_its_user_are_cut() -> None:
    """Found: each of ten thousand connections could keep a name of 128 KiB. A name is now cut to what a list shows."""
    handshake = Handshake(Login(None), None, SimpleNamespace(default=None))  # type: ignore[arg-type]
    said = {"connection_name": "c" * 100_000}
    handshake.apply(
        Method((10, 11), "connection.start-ok", {
            "client_properties": said, "mechanism": "PLAIN", "response": b"\0" + b"u" * 100_000 + b"\0p", "locale": "en_US",
        })
    )  # fmt: skip
    assert handshake.client_name == "c" * NAME_CHARS_MAX
    assert handshake.rights.user == "u" * USER_CHARS_MAX
