"""The line with which a node passes a client on: encoded and decoded, and every other line refused."""

import pytest

from toymq_py.errors import BadOperation
from toymq_py.replication.pass_line import PASS, Pass, decode, encode


@pytest.mark.parametrize("token", [None, "secret", "a b/ä%=&"])
def test_what_is_asked_for_is_read(token: str | None) -> None:
    line = encode(Pass("orders_1", "b-2", token))
    assert line.startswith(PASS)
    assert decode(line) == Pass("orders_1", "b-2", token)
    assert decode(encode(Pass("orders_1", "b-2", token, trusted=True))) == Pass("orders_1", "b-2", token, trusted=True)


def test_the_secret_is_not_shown() -> None:
    assert "secret" not in repr(Pass("orders", "b", "secret"))


@pytest.mark.parametrize(
    "line",
    [
        b"", b"PASS\n", b"PASS 1\n", b"PASS 1 cluster=a group=b", b"PASS 1 cluster=a\n", b"PASS x cluster=a group=b\n",
        b"PASS 1 cluster=a/b group=b\n", b"PASS 1 cluster=a group=b auth=\n", b"PASS 1 cluster=a group=b more=1\n",
        b"PASS 1 cluster=a group=b rights=\n", b"PASS 1 cluster=a group=b rights=all auth=x\n",
        b"FOLLOW 1 cluster=a group=b\n", b"PASS 1 cluster=a group=b auth=\xff\n",
    ],
)  # fmt: skip
def test_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises(BadOperation, match="an invalid line"):
        decode(line)
