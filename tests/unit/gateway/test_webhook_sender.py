"""The signature of a push, the wait after a failed one, and how it is reported."""

import asyncio
import socket

import pytest

from toymq_py.clock import SystemClock
from toymq_py.gateway.webhook_sender import WebhookSender, backoff_s, sign


def test_the_signature_of_the_specification() -> None:
    """Compare with the example of the Standard Webhooks specification's reference libraries."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    signature = sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_wait_doubles_up_to_its_end() -> None:
    assert [backoff_s(attempt) for attempt in (1, 2, 3, 9, 10, 100)] == [1, 2, 4, 256, 300, 300]


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_refused_connection_names_what_was_called_and_not_a_path_that_may_be_secret(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    sender = WebhookSender(SystemClock(), asyncio.get_running_loop(), private=True)
    failure = await sender.send(f"{scheme}://127.0.0.1:{port}/T0/secret", None, 5000, "id", {}, b"x")
    assert failure is not None
    assert failure.startswith(f"cannot reach {scheme}://127.0.0.1:{port}: ")
    assert "Connect" in failure
    assert "Errno" not in failure
    assert "secret" not in failure
