"""The reply to ``CLUSTER``: what one process knows without asking another one. Contract: protocol.md, "CLUSTER"."""

from collections.abc import Callable

from toymq_py.broker import Broker
from toymq_py.session.listing import json_reply


def cluster_reply(broker: Broker, sees: Callable[[str], bool] | None) -> bytes:
    """``sees``: whether a client may see a topic; None: it does not ask for them."""
    found = {**broker.placement.described(sees), "gateways": broker.gateways}
    if sees is not None:
        wholes = sorted(broker.partitioned.by_name.items())
        found["partitions"] = {name: whole.count for name, whole in wholes if sees(name)}
    return json_reply(found)
