"""Messages between a worker and a job process are the same after encoding and decoding."""

import pickle

import pytest

from toymq.workers.job_messages import Answer, Done, LogLine, Place, Raised, Refused, Request, Unusable


@pytest.mark.parametrize(
    "message",
    [
        Place("shop", "Shop.work", "jobs"), Request("t", 7, 1, 5, b"k", b"", b"{}", wanted=True), Done(None), Done(b"{}"),
        Refused("no"), Raised((("builtins", "ValueError"),), "no", "Traceback"), Unusable("no"), LogLine({"msg": "x"}),
    ],
)  # fmt: skip
def test_a_message_survives_the_way(message: object) -> None:
    assert pickle.loads(pickle.dumps(message)) == message


def test_an_answer_is_what_ends_a_request() -> None:
    assert isinstance(Done(None), Answer)
    assert not isinstance(LogLine({}), Answer)
