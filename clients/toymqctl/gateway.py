"""The HTTP gateway of a command's broker, for webhooks, alerts, connections, inspect and `dlq discard`.

``--http-url``, ``TOYMQ_HTTP_URL`` or the context name it. Otherwise the broker is asked over the wire where it listens.
"""

from toymq.http_gateway import HttpGateway, choose
from toymq_py.names import check_name
from toymqctl.broker import Broker

NEEDS_IT = "webhooks, alerts, connections, inspect and `dlq discard` are reached over HTTP"


def gateway_of(broker: Broker) -> HttpGateway:
    """The gateway of a broker. Raises: ConfigError, ConnectFailed, RequestError."""
    url = broker.http_url
    if url is None:
        with broker.connect() as client:
            url = choose(client.stats().get("gateways"), broker.address, NEEDS_IT)
    return HttpGateway(url, broker.address.token, broker.certificates.context() if url.startswith("https:") else None)


def path_of(collection: str, name: str) -> str:
    """The path of one of a collection. Raises: BadName for what would be another path."""
    return f"/v1/{collection}/{check_name(collection.removesuffix('s'), name)}"
