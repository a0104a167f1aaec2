"""Names, parameters and errors of the dialect ``tinymq``. ``/`` in a topic's name becomes ``.``. A group is a consumer of that
name; without a group the consumer is ``tinymq``. ``topic::group`` names both. A final ``*`` of a glob matches several words. A
message's id is a UUID made of its number and a hash of its topic, or of topic and group (ADR 0061)."""

import re
from collections.abc import Iterable
from functools import lru_cache, partial
from hashlib import blake2b

from starlette.responses import Response

from toymq_py.errors import BadArgument, BadFraming, BadName, NoSuchConsumer, PayloadTooLarge, RequestError
from toymq_py.gateway.dialects import go_duration_ms
from toymq_py.gateway.operations import Parameter, check_key, whole
from toymq_py.gateway.poll_operations import LEASE_MAX
from toymq_py.gateway.problems import NotLeased, headers_of_refusal, status_of
from toymq_py.gateway.topic_operations import json_response
from toymq_py.gateway.webhook_pusher import CONSUMER_PREFIX
from toymq_py.names import TopicPattern, check_name, is_dead_letters, is_pattern
from toymq_py.records import MSG_ID_MAX
from toymq_py.topic import Topic

CONSUMER = "tinymq"
LEASE_S = 30.0
BODY_BYTES_MAX = 2_097_152
"""Most bytes of a payload, unless ``--max-payload`` is less."""
BACKLOG_MAX = 100_000
SETTINGS = {"backlog_max_messages": str(BACKLOG_MAX), "max_attempts": "3"}
"""Settings of new queues; see ``settings_of``."""
NOT_FOUND = "Message not found"
HEADER_PREFIX = b"x-mq-"
OF_GROUP = "::"
UNMADE_MAX = 1024
_ID = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-8([0-9a-f]{3})-800([0-9a-f])-([0-9a-f]{12})\Z")


# -- names and parameters


def settings_of(name: str) -> dict[str, str]:
    """Settings for a topic that this dialect creates; {} for a dead-letter topic, which must not have dead letters itself."""
    return {} if is_dead_letters(name) else dict(SETTINGS)


def topic_name(text: str) -> str:
    """Convert the name of a TinyMQ topic to that of the toymq topic. Raises: BadName."""
    return check_name("topic", text.strip("/").replace("/", "."))


def topic_or_glob(text: str) -> str:
    """Convert the name of a TinyMQ topic, or a glob, to a toymq topic or pattern. A glob's final ``*`` matches several words.
    Raises: BadName."""
    name = text.strip("/").replace("/", ".")
    if not is_pattern(name):
        return check_name("topic", name)
    if ">" in name:
        raise BadName(f"invalid glob {name[:100]!a}: use * as a whole word, and no >")
    pattern = name[:-1] + ">" if name.endswith("*") else name
    TopicPattern(pattern)
    return pattern


def group_name(text: str) -> str:
    """The name of a group's consumer. Raises: BadName, also for the name of a webhook's consumer."""
    if text.startswith(CONSUMER_PREFIX):
        raise BadName(f"invalid group {text[:100]!a}: names that begin with {CONSUMER_PREFIX} are reserved for webhooks")
    return check_name("consumer", text)


def of_group(text: str) -> tuple[str, str | None]:
    """Split ``orders::emails`` into topic and group; the group is None without one. Raises: BadName."""
    topic, marked, group = text.partition(OF_GROUP)
    return topic, group_name(group.rstrip("/")) if marked else None


def with_group(name: str, group: str | None) -> str:
    """Join topic and group to ``orders::emails``."""
    return name if group is None else f"{name}{OF_GROUP}{group}"


@lru_cache(maxsize=4096)
def _mark(name: str) -> str:
    return blake2b(name.encode(), digest_size=6).hexdigest()


_unmade: dict[tuple[str, str], str] = {}
"""By topic and hash, groups that do not exist yet and whose messages a peek or filter has shown: an ack may name them by the
hash alone. The last ``UNMADE_MAX`` of this process, the most recently shown one last."""


def remember_unmade(topic: str, group: str) -> None:
    """Remember a group that does not exist as a consumer, as it was only peeked or filtered, but is in the ids of messages
    that were shown."""
    at = topic, _mark(with_group(topic, group))
    _unmade.pop(at, None)
    _unmade[at] = group
    if len(_unmade) > UNMADE_MAX:
        del _unmade[next(iter(_unmade))]


def is_marked(text: str, topic: str, group: str) -> bool:
    """Whether an id is one that ``shown_id`` made for this topic and group."""
    found = _ID.match(text)
    return found is not None and found[5] == _mark(with_group(topic, group))


def shown_id(topic: str, group: str | None, msg_id: int) -> str:
    """A message's id as a UUID, as TinyMQ has: its number, lowest digits first, and the hash of topic and group."""
    high = msg_id >> 32
    mark = _mark(with_group(topic, group))
    return f"{msg_id & 0xFFFFFFFF:08x}-{high & 0xFFFF:04x}-8{high >> 16 & 0xFFF:03x}-8{high >> 28:03x}-{mark}"


def message_id(topic: Topic, text: str, named: str | None = None) -> tuple[int, str | None, bool]:
    """Parse an id that ``shown_id`` made, or a plain number. ``named``: the group that the request names.

    Returns: the number, the group, and whether the id tells the group; a plain number does not.

    Raises: NotLeased for another text, and for another topic's id.
    """
    if (found := _ID.match(text)) is None:
        try:
            return whole("id", 0, MSG_ID_MAX)(text), None, False
        except BadArgument:
            raise NotLeased(NOT_FOUND) from None
    low, middle, high, top, mark = found.groups()
    msg_id = int(top + high + middle + low, 16)
    groups: Iterable[str | None] = (None, named, *topic.consumers, _unmade.get((topic.name, mark)))
    for group in groups:
        if _mark(with_group(topic.name, group)) == mark:
            return msg_id, group, True
    raise NotLeased(NOT_FOUND)


def _yes(name: str) -> Parameter[bool]:
    def parse(text: str) -> bool:
        if text not in ("true", "false", "1", "0"):
            raise BadArgument(f"invalid {name} {text[:50]!a}: write true or false")
        return text in ("true", "1")

    return Parameter(name, "query", "", {"type": "boolean"}, parse)


def _duration(name: str, text: str) -> Parameter[int]:
    return Parameter(name, "query", text, {"type": "string"}, partial(go_duration_ms, name))


def _plain(name: str, text: str = "") -> Parameter[str]:
    return Parameter(name, "query", text, {"type": "string"}, str)


TOPIC = Parameter("topic", "path", "Slashes are dots here.", {"type": "string"}, topic_name, required=True)
GLOB = Parameter("topic", "path", "Also with * at its end.", {"type": "string"}, topic_or_glob, required=True)
OF_TOPIC = Parameter(
    "topic", "path", "Slashes are dots here; `topic::group` is a group's.", {"type": "string"},
    lambda text: topic_name(of_group(text)[0]), required=True,
)  # fmt: skip
OF_GLOB = Parameter(
    "topic", "path", "Also with * at its end; `topic::group` is a group's.", {"type": "string"},
    lambda text: topic_or_glob(of_group(text)[0]), required=True,
)  # fmt: skip
MESSAGE_ID = Parameter("id", "path", "", {"type": "string"}, str, required=True)
OF_QUEUE = Parameter(
    "queue", "query", "Name of the queue; `topic::group` is a group's.", {"type": "string"},
    lambda text: topic_name(of_group(text)[0]), required=True,
)  # fmt: skip
OF_GROUPS = Parameter("topic", "query", "Name of the topic.", {"type": "string"}, topic_name, required=True)
QUEUE = Parameter("queue", "query", "Name of the queue.", {"type": "string"}, topic_name, required=True)
LIMIT = Parameter(
    "limit", "query", f"No more than {LEASE_MAX} come.", {"type": "integer", "minimum": 1},
    lambda text: min(whole("limit", 1, MSG_ID_MAX)(text), LEASE_MAX),
)  # fmt: skip
TIMEOUT = _duration("timeout", "How long to wait for a message: 10s.")
GROUP = Parameter("group", "query", "A consumer group.", {"type": "string"}, group_name)
TTL, DELAY = _duration("ttl", "Dropped after."), _duration("delay", "Delivered after.")
PRIORITY, BROADCAST = _plain("priority"), _yes("broadcast")
IDEMPOTENCY = _plain("idempotency", "auto: the body is its own key.")
AUTO_ACK, PEEK = _yes("auto_ack"), _yes("peek")
FILTER_KEY = _plain("filter_key", "A member of the payload, where that is a JSON object; or a header, X-MQ-….")
FILTER_VAL = _plain("filter_val", "Its value.")
KEY = Parameter("Idempotency-Key", "header", "", {"type": "string"}, check_key)


def refuse(error: RequestError) -> Response:
    """The response to an error, as plain text and with the statuses of TinyMQ."""
    if isinstance(error, NotLeased | NoSuchConsumer):
        return json_response({"status": "error", "message": NOT_FOUND}, 404)
    status = 400 if isinstance(error, BadArgument | BadName | BadFraming) else status_of(error)
    headers = headers_of_refusal(error, status)
    if isinstance(error, PayloadTooLarge):
        headers["connection"] = "close"  # as the original, however much was read
    return Response(f"{error}\n".encode(errors="backslashreplace"), status, headers, "text/plain")
