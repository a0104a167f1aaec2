"""The common base of the asyncio client and the blocking client: facts about the broker, and methods made from ``requests``.

ADR 0079: the signature and docstring of a method that sends one request are written once, in ``requests``. Each client makes
its method from the function there, and adds how to wait for the answer.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from toymq.conversation import Conversation
from toymq.options import Options
from toymq_py.protocol import HelloReply
from toymq_py.records import PAYLOAD_BYTES_LIMIT, IdRange

Method = TypeVar("Method", bound=Callable[..., Any])


class ClientBase(ABC):
    """Base of the asyncio client and the blocking client: what both know about their broker."""

    _options: Options

    @property
    @abstractmethod
    def _main_conversation(self) -> Conversation | None:
        """The conversation of the connection for publishes and ordinary requests; None before the client is open."""

    @abstractmethod
    def _conversations(self) -> Iterable[Conversation]:
        """The conversations of all connections of this client."""

    @property
    def _hello(self) -> HelloReply | None:
        """The broker's last reply to HELLO."""
        conversation = self._main_conversation
        return conversation.server if conversation is not None else None

    @property
    def connected(self) -> bool:
        """Whether the broker greeted this client and the connection is up, as far as this client has noticed."""
        conversation = self._main_conversation
        return conversation is not None and conversation.online

    @property
    def server(self) -> str | None:
        """Name and version of the broker, from its last greeting; None before the first."""
        hello = self._hello
        return hello.server if hello is not None else None

    @property
    def max_payload(self) -> int | None:
        """Most bytes of one message, headers included, from the broker's last greeting; None before the first."""
        hello = self._hello
        return hello.max_payload if hello is not None else None

    @property
    def _body_bytes_max(self) -> int:
        return self.max_payload or PAYLOAD_BYTES_LIMIT

    def _settle(self, topic: str, consumer: str, ids: tuple[IdRange, ...]) -> None:
        """Stop counting these deliveries as open in their subscription: the caller acks or nacks them by id."""
        for conversation in self._conversations():
            conversation.settle(topic, consumer, ids)


def as_method(method: Method, request: Callable[..., Any], returns: Any) -> Method:
    """Give a client's method the name, docstring and signature of its function in ``requests``."""
    signature = inspect.signature(request)
    parameters = [one for name, one in signature.parameters.items() if name != "client"]
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__name__, method.__qualname__ = request.__name__, f"Client.{request.__name__}"
    method.__doc__ = request.__doc__
    method.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[itself, *parameters], return_annotation=returns
    )
    return method
