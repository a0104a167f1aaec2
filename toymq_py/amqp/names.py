"""Names of AMQP queues as names of topics: one to one. ADR 0123, 0164.

A queue whose name is a legal topic name, and not that of a partition (``orders#3``), has the topic of this name. Other names,
such as ``celery@host.celery.pidbox``, become ``_amqp-`` and the name, in which each byte that is illegal in a topic's name is
escaped as ``-`` and two hexadecimal digits. A name that would be too long is replaced by its digest.

The topic of a queue in another virtual host than ``/`` is named ``_vhost.``, the host, a dot and the queue, escaped in the same
way. Dots in the host's name are escaped, too, so that the host is one word of the topic. A host or queue that is too long is
replaced by ``--`` and a digest; no escape contains two dashes.
"""

import re
from hashlib import sha256

from toymq_py.config.amqp_definitions import DEFAULT_VHOST
from toymq_py.names import NAME_BYTES_MAX, PARTITION_MARK, is_topic_name

PREFIX, DIGEST_PREFIX, VHOST_PREFIX = "_amqp-", "_amqp.sha256-", "_vhost."
VHOST_BYTES_MAX = 64
"""The longest escaped name of a virtual host; a longer one is known by its digest."""
_ESCAPED = re.compile(rb"[^A-Za-z0-9._]")


def topic_of(queue: str, vhost: str = DEFAULT_VHOST) -> str:
    """The name of a queue's topic."""
    if vhost == DEFAULT_VHOST:
        is_plain = is_topic_name(queue) and PARTITION_MARK not in queue  # a queue is no partition, whatever its name
        if is_plain and not queue.startswith((PREFIX, DIGEST_PREFIX, VHOST_PREFIX)):
            return queue
        found = PREFIX + _escaped(queue)
        return found if len(found) <= NAME_BYTES_MAX else DIGEST_PREFIX + _digest(queue)
    host = _escaped(vhost).replace(".", "-2e")
    if len(host) > VHOST_BYTES_MAX:
        host = f"--{_digest(vhost)}"
    found = f"{VHOST_PREFIX}{host}.{_escaped(queue)}"
    return found if len(found) <= NAME_BYTES_MAX else f"{VHOST_PREFIX}{host}.--{_digest(queue)}"


def _escaped(name: str) -> str:
    return _ESCAPED.sub(lambda match: b"-%02x" % match[0][0], name.encode()).decode()


def _digest(name: str) -> str:
    return sha256(name.encode()).hexdigest()
