"""RabbitMQ's direct reply-to: replies go straight to the requester's channel, past all queues, and are not stored.

A client consumes from ``amq.rabbitmq.reply-to`` and publishes requests with this ``reply-to``, which the broker replaces by a
name of the channel alone. A publish to that name by the default exchange is delivered on the channel. Source: RabbitMQ,
"Direct Reply-to".
"""

import secrets
from collections.abc import Callable

from toymq_py.amqp.properties import Envelope

REPLY_TO = "amq.rabbitmq.reply-to"
_OF_A_CHANNEL = f"{REPLY_TO}."

Came = Callable[[Envelope, bytes], None]


class Replies:
    """The channels that wait for replies, each under a token that cannot be guessed."""

    def __init__(self) -> None:
        self._waiting: dict[str, Came] = {}

    def add(self, came: Came) -> str:
        """Add a channel. ``came`` is called with each reply. Returns: the token."""
        token = secrets.token_urlsafe(16)
        self._waiting[token] = came
        return token

    def discard(self, token: str) -> None:
        self._waiting.pop(token, None)

    def waiting(self, name: str) -> Came | None:
        """The function that takes the replies of a channel, given its name; None when the channel is gone."""
        return self._waiting.get(name.removeprefix(_OF_A_CHANNEL))


def is_reply_name(name: str) -> bool:
    """Whether a queue name has the form of a channel's direct reply name; the channel may be gone."""
    return name.startswith(_OF_A_CHANNEL)


def reply_name(token: str) -> str:
    return f"{_OF_A_CHANNEL}{token}"
