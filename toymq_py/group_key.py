"""The group key of a message: messages of one group keep their order at a consumer with mode=keyed. Pure.

Contract: delivery.md, "mode"; ADR 0122.
"""

from hashlib import blake2b

from toymq_py.letter import ORIGIN_KEY, came_back, split_headers
from toymq_py.records import KEY_BYTES_MAX, PRODUCER_PREFIX

GROUP = b"toymq-group"
"""The header that names the group of a message, before its key does. Without a value the message has none."""
_LINE = GROUP + b":"


def group_key(topic: str, key: bytes, block: bytes) -> bytes:
    """The group key of a topic's message; b"" for none.

    Args:
        key, block: the key and header block of the record; b"" for none.
    """
    if not block:
        return b"" if key.startswith(PRODUCER_PREFIX) else key
    at = 0 if block.startswith(_LINE) else block.find(_LINE)
    while at > 0 and block[at - 1 : at] != b"\n":
        at = block.find(_LINE, at + 1)
    if at < 0:
        key = split_headers(block)[1].get(ORIGIN_KEY, b"") if came_back(topic, key) else key
        return b"" if key.startswith(PRODUCER_PREFIX) else key
    group = block[at + len(_LINE) :].split(b"\n", 1)[0].removeprefix(b" ")
    return group if len(group) <= KEY_BYTES_MAX else blake2b(group).digest()
