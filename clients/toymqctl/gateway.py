"""Finds the HTTP gateway of a command's broker, for webhooks, alerts, connections, inspect and `dlq discard`.

``--http-url``, ``TOYMQ_HTTP_URL`` or the context gives its URL. Otherwise the broker is asked, over toymq's protocol, where its
gateway listens.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import click

from toymq.http_gateway import GatewayFailed, HttpGateway, choose, named_in, told_by
from toymq.url import parse_url
from toymq_py.errors import Moved
from toymq_py.names import check_name
from toymqctl.broker import Broker
from toymqctl.places import cluster_of

NEEDS_IT = "webhooks, alerts, connections, inspect and `dlq discard` are reached over HTTP"
ANSWERS_S = 3.0
"""A worker that takes longer stands still, or is just started."""
MOVES_MAX = 4
"""A topic that moves more often while it is asked for goes in circles."""


def gateway_of(broker: Broker, *, any_worker: bool = False) -> HttpGateway:
    """Return the gateway of a broker; with several workers that of worker 0, so that every command asks the same worker.

    Args:
        any_worker: any worker can answer: take the gateway of the one that the client is connected to.

    Raises: ConfigError, ConnectFailed, RequestError, GatewayFailed.
    """
    if broker.http_url is not None:
        return _gateway(broker, broker.http_url)
    answered: list[str] = []
    with broker.connect(on_event=lambda event: answered.append(event.address)) as client:
        cluster = cluster_of(client)
        here, first = cluster.get("worker", 0), 0
        if (gateways := told_by(cluster, here if any_worker else first)) is None:  # an older broker
            gateways = client.stats().get("gateways")
    address = replace(parse_url(answered[-1]), tls=broker.address.tls)
    gateway = _gateway(broker, choose(gateways, address, NEEDS_IT))
    if here != first and not any_worker:
        _check_answers(gateway, choose(told_by(cluster, here), address, NEEDS_IT))
    return gateway


def _check_answers(gateway: HttpGateway, other: str) -> None:
    """Check that the gateway of worker 0 answers. Raises: GatewayFailed, with the URL ``other`` of a worker that does
    answer."""
    try:
        gateway.ask("GET", "/healthz", timeout_s=ANSWERS_S)
    except GatewayFailed as error:
        raise GatewayFailed(f"worker 0: {error}. `--http-url {other}` asks another worker for what that one has") from error


def say_part(found: Mapping[str, Any], what: str) -> None:
    """Print to stderr which worker or group an answer comes from, if others have the rest. An older broker does not say."""
    if (part := found.get("part")) is not None:
        click.echo(f"toymqctl: these are the {what} of {part} alone: --http-url asks another one", err=True)


def ask_of_topic(broker: Broker, method: str, topic: str, rest: str, body: Any = None) -> Any:
    """Send a request for the path ``rest`` below a topic to the gateway of the group that has the topic.

    Raises: as ``gateway_of`` and ``HttpGateway.ask``.
    """
    gateway, moves = gateway_of(broker, any_worker=True), 0
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
    """Return the path of one resource of a collection. Raises: BadName for a name that would make another path."""
    return f"/v1/{collection}/{quote(check_name(collection.removesuffix('s'), name), safe='')}"
