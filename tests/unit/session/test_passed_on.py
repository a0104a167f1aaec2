"""Commands that a session has passed on to another worker, until they are answered."""

from toymq_py.names import TopicPattern
from toymq_py.session.passed_on import Subscribed, WorkerLink, code_of, is_fatal


def test_a_message_belongs_to_the_subscription_that_covers_its_topic() -> None:
    worker = WorkerLink()
    whole = worker.subscribed["orders"] = Subscribed(TopicPattern.of_partitions("orders"))
    plain = worker.subscribed["plain"] = Subscribed(None)
    assert worker.subscription_of(b"MSG orders#3 0 1 0 - 0\n") is whole
    assert worker.subscription_of(b"MSG plain 0 1 0 - 0\n") is plain
    assert worker.subscription_of(b"MSG other 0 1 0 - 0\n") is None, "it is of a PULL"
    worker.ending("orders")
    assert (whole.ending, plain.ending) == (True, False)


def test_the_code_of_a_reply_and_whether_it_ends_the_connection() -> None:
    frames = b"OK 1\n", b"ERR NO_SUCH_TOPIC there is none\n", b"ERR NOT_LEADER\n", b"ERR UNHEARD_OF x\n"
    assert [(code_of(frame), is_fatal(frame)) for frame in frames] == [
        (None, False), ("NO_SUCH_TOPIC", False), ("NOT_LEADER", True), ("UNHEARD_OF", False),
    ]  # fmt: skip
