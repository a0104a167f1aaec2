"""The HTTP gateway of a command's broker, for webhooks, alerts, connections and `dlq discard`.

``--http-url``, ``TOYMQ_HTTP_URL`` or the context name it. Otherwise the broker is asked over the wire where it listens.
"""

from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit, urlunsplit

from toymq.http_gateway import HttpGateway
from toymq.url import Address
from toymq_py.errors import ConfigError
from toymq_py.names import check_name
from toymqctl.broker import Broker

NEEDS_IT = "webhooks, alerts, connections and `dlq discard` are reached over HTTP"


def gateway_of(broker: Broker) -> HttpGateway:
    """The gateway of a broker. Raises: ConfigError, ConnectFailed, RequestError."""
    url = broker.http_url
    if url is None:
        with broker.connect() as client:
            url = choose(client.stats().get("gateways"), broker.address)
    return HttpGateway(url, broker.address.token, broker.certificates.context() if url.startswith("https:") else None)


def path_of(collection: str, name: str) -> str:
    """The path of one of a collection. Raises: BadName for what would be another path."""
    return f"/v1/{collection}/{check_name(collection.removesuffix('s'), name)}"


def choose(gateways: Sequence[str] | None, address: Address) -> str:
    """The gateway to ask, of those that a broker listens on.

    Args:
        gateways: URLs as they are bound, those with TLS first; None for a broker that does not tell.

    Raises: ConfigError when there is none, or none with TLS for a broker that is reached over TLS on another machine: the token
        would cross the network in the clear.
    """
    if gateways is None:
        raise ConfigError(f"{NEEDS_IT}, and this broker does not tell where its gateway listens: name it with --http-url")
    if not gateways:
        raise ConfigError(f"{NEEDS_IT}, and this broker has no gateway: start it with --http 127.0.0.1:7800")
    url = gateways[0]
    if address.tls and not url.startswith("https:") and not _is_loopback(address.host):
        raise ConfigError(
            f"{NEEDS_IT}, and the gateway of this broker has no TLS: start it with --https, or name {url} with --http-url "
            "to send the token in the clear"
        )
    return _reachable(url, address)


def _reachable(url: str, address: Address) -> str:
    """A URL as it is reached: a listener on every address is where the broker is."""
    parts = urlsplit(url)
    if not address.host or not _is_any(parts.hostname or ""):
        return url
    host = f"[{address.host}]" if ":" in address.host else address.host
    return urlunsplit(parts._replace(netloc=f"{host}:{parts.port}"))


def _is_any(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
