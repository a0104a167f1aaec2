"""The signature of a push, and the wait after one that failed."""

from toymq_py.gateway.webhook_sender import backoff_s, sign


def test_the_signature_of_the_specification() -> None:
    """The example of the Standard Webhooks specification's reference libraries."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    signature = sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_wait_doubles_up_to_its_end() -> None:
    assert [backoff_s(attempt) for attempt in (1, 2, 3, 9, 10, 100)] == [1, 2, 4, 256, 300, 300]
