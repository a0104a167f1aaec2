"""Counting the replies of other brokers."""

import pytest

from toymq_bench.errors import WrongReply
from toymq_bench.peers.peer import CountingProducer


@pytest.mark.parametrize("step", [1, 5, 1000])
@pytest.mark.parametrize(
    ("token", "wrong", "replies", "error"),
    [
        (b"$", rb"-[A-Z]", b"$15\r\n1526919030470-0\r\n" * 3, b"-OOM too much\r\n"),
        (b'"seq":', rb'"error"|-ERR', b'MSG inbox.0 1 30\r\n{"stream":"s", "seq":12}\r\n' * 3, b'MSG i 1 9\r\n{"error":1}\r\n'),
        (b"INSERTED", rb"BURIED|[A-Z]_[A-Z]|DRAINING", b"INSERTED 12\r\n" * 3, b"OUT_OF_MEMORY\r\n"),
    ],
)
def test_each_reply_counts_once_however_it_arrives(step: int, token: bytes, wrong: bytes, replies: bytes, error: bytes) -> None:
    producer = CountingProducer(b"frame", 4, token, wrong)
    assert sum(producer.replies(replies[start : start + step]) for start in range(0, len(replies), step)) == 3
    with pytest.raises(WrongReply):
        producer.replies(error)
