"""Names of AMQP queues as names of topics: one to one. ADR 0123.

A name that a topic may have stands for itself. Others, ``celery@host.celery.pidbox`` say, begin with ``_amqp-``, and each byte
that a topic's name does not have is ``-`` and its two hexadecimal digits. A name that would be too long is known by its digest.
"""

import re
from hashlib import sha256

from toymq_py.names import NAME_BYTES_MAX, is_topic_name

PREFIX, DIGEST_PREFIX = "_amqp-", "_amqp.sha256-"
_ESCAPED = re.compile(rb"[^A-Za-z0-9._]")


def topic_of(queue: str) -> str:
    """The topic of a queue."""
    if is_topic_name(queue) and not queue.startswith((PREFIX, DIGEST_PREFIX)):
        return queue
    data = queue.encode()
    found = PREFIX + _ESCAPED.sub(lambda match: b"-%02x" % match[0][0], data).decode()
    return found if len(found) <= NAME_BYTES_MAX else DIGEST_PREFIX + sha256(data).hexdigest()
