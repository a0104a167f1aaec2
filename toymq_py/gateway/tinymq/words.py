"""Names, parameters and refusals of the dialect ``tinymq``. How its words map: ``/`` in a name becomes ``.``; without ``group``
the consumer is ``tinymq``, a group is a consumer of that name; the glob ``*`` at the end crosses dots."""

from functools import partial

from starlette.responses import Response

from toymq_py.errors import BadArgument, BadFraming, BadName, NoSuchConsumer, RequestError
from toymq_py.gateway.dialects import go_duration_ms
from toymq_py.gateway.leasing import LEASE_MAX
from toymq_py.gateway.operations import Parameter, check_key, whole
from toymq_py.gateway.problems import NotLeased, headers_of_refusal, status_of
from toymq_py.gateway.pushing import CONSUMER_PREFIX
from toymq_py.gateway.topics import json_response
from toymq_py.model import DEAD_LETTERS, MSG_ID_MAX, TopicPattern, check_name, is_pattern

CONSUMER = "tinymq"
LEASE_S = 30.0
BODY_BYTES_MAX = 2_097_152
"""Exactly so many are accepted, unless ``--max-payload`` is less."""
BACKLOG_MAX = 100_000
SETTINGS = {"backlog_max_messages": str(BACKLOG_MAX), "max_attempts": "3"}
"""See ``settings_of``."""
NOT_FOUND = "Message not found"
HEADER_PREFIX = b"x-mq-"


# -- names and parameters


def settings_of(name: str) -> dict[str, str]:
    """Of a topic that is made here. Dead letters have none: they are the last stop."""
    return {} if name.endswith(DEAD_LETTERS) else dict(SETTINGS)


def topic_name(text: str) -> str:
    """A topic of the original as ours. Raises: BadName."""
    return check_name("topic", text.strip("/").replace("/", "."))


def topic_or_glob(text: str) -> str:
    """The same, or a glob: its last ``*`` crosses dots. Raises: BadName."""
    name = text.strip("/").replace("/", ".")
    if not is_pattern(name):
        return check_name("topic", name)
    if ">" in name:
        raise BadName("a glob has * for any text, as whole words only")
    pattern = name[:-1] + ">" if name.endswith("*") else name
    TopicPattern(pattern)
    return pattern


def group_name(text: str) -> str:
    """A group as our consumer; a webhook's is none. Raises: BadName."""
    if text.startswith(CONSUMER_PREFIX):
        raise BadName(f"names that begin with {CONSUMER_PREFIX} are of webhooks")
    return check_name("consumer", text)


def message_id(text: str) -> int:
    """Raises: NotLeased for any other text, too: the original's ids are no numbers."""
    try:
        return whole("id", 0, MSG_ID_MAX)(text)
    except BadArgument:
        raise NotLeased(NOT_FOUND) from None


def _yes(name: str) -> Parameter[bool]:
    def parse(text: str) -> bool:
        if text not in ("true", "false", "1", "0"):
            raise BadArgument(f"{name} is true or false")
        return text in ("true", "1")

    return Parameter(name, "query", "", {"type": "boolean"}, parse)


def _duration(name: str, text: str) -> Parameter[int]:
    return Parameter(name, "query", text, {"type": "string"}, partial(go_duration_ms, name))


def _plain(name: str, text: str = "") -> Parameter[str]:
    return Parameter(name, "query", text, {"type": "string"}, str)


TOPIC = Parameter("topic", "path", "Slashes are dots here.", {"type": "string"}, topic_name, required=True)
GLOB = Parameter("topic", "path", "Also with * at its end.", {"type": "string"}, topic_or_glob, required=True)
MESSAGE_ID = Parameter("id", "path", "", {"type": "string"}, message_id, required=True)
QUEUE = Parameter("queue", "query", "Name of the queue.", {"type": "string"}, topic_name, required=True)
LIMIT = Parameter("limit", "query", "", {"type": "integer", "minimum": 1, "maximum": LEASE_MAX}, whole("limit", 1, LEASE_MAX))
TIMEOUT = _duration("timeout", "How long to wait for a message: 10s.")
GROUP = Parameter("group", "query", "A consumer group.", {"type": "string"}, group_name)
TTL, DELAY = _duration("ttl", "Dropped after."), _duration("delay", "Delivered after.")
PRIORITY, BROADCAST = _plain("priority"), _yes("broadcast")
IDEMPOTENCY = _plain("idempotency", "auto: the body is its own key.")
AUTO_ACK, PEEK = _yes("auto_ack"), _yes("peek")
FILTER_KEY, FILTER_VAL = _plain("filter_key", "A header."), _plain("filter_val", "Its value. Nothing is consumed.")
KEY = Parameter("Idempotency-Key", "header", "", {"type": "string"}, check_key)


def refuse(error: RequestError) -> Response:
    """The original's statuses and its plain text."""
    if isinstance(error, NotLeased | NoSuchConsumer):
        return json_response({"status": "error", "message": NOT_FOUND}, 404)
    status = 400 if isinstance(error, BadArgument | BadName | BadFraming) else status_of(error)
    return Response(f"{error}\n", status, headers_of_refusal(error, status), "text/plain")
