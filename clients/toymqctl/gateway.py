"""The HTTP gateway of a command's broker, for webhooks, alerts, connections, inspect and `dlq discard`.

``--http-url``, ``TOYMQ_HTTP_URL`` or the context name it. Otherwise the broker is asked over the wire where it listens.
"""

from dataclasses import replace
from typing import Any
from urllib.parse import quote

from toymq.http_gateway import HttpGateway, choose, named_in
from toymq.url import parse_url
from toymq_py.errors import Moved
from toymq_py.names import check_name
from toymqctl.broker import Broker

NEEDS_IT = "webhooks, alerts, connections, inspect and `dlq discard` are reached over HTTP"
MOVES_MAX = 4
"""A topic that moves more often while it is asked for goes in circles."""


def gateway_of(broker: Broker) -> HttpGateway:
    """The gateway of a broker. Raises: ConfigError, ConnectFailed, RequestError."""
    url = broker.http_url
    if url is None:
        answered: list[str] = []
        with broker.connect(on_event=lambda event: answered.append(event.address)) as client:
            gateways = client.stats().get("gateways")
            url = choose(gateways, replace(parse_url(answered[-1]), tls=broker.address.tls), NEEDS_IT)
    return _gateway(broker, url)


def ask_of_topic(broker: Broker, method: str, topic: str, rest: str, body: Any = None) -> Any:
    """Ask for what is below a topic's path, at the gateway of the group that has the topic.

    Raises: as ``gateway_of`` and ``HttpGateway.ask``.
    """
    gateway, moves = gateway_of(broker), 0
    while True:
        try:
            return gateway.ask(method, path_of("topics", topic) + rest, body)
        except Moved as moved:
            url, moves = named_in(moved, gateway.url), moves + 1
            if url is None or moves > MOVES_MAX:
                raise
        gateway = _gateway(broker, url)


def _gateway(broker: Broker, url: str) -> HttpGateway:
    return HttpGateway(url, broker.address.token, broker.certificates.context() if url.startswith("https:") else None)


def path_of(collection: str, name: str) -> str:
    """The path of one of a collection. Raises: BadName for what would be another path."""
    return f"/v1/{collection}/{quote(check_name(collection.removesuffix('s'), name), safe='')}"
