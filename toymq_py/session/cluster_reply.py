"""The reply to ``CLUSTER``, from what one process knows without asking another one. Contract: protocol.md, "CLUSTER"."""

from collections.abc import Callable

from toymq_py.broker import Broker
from toymq_py.session.listing import json_reply


def cluster_reply(broker: Broker, sees: Callable[[str], bool], *, moved: bool) -> bytes:
    """Make the reply. ``sees``: whether the client may see a topic; ``moved``: it follows MOVED, and asks for no list of
    topics."""
    wholes = sorted(broker.partitioned.by_name.items())
    return json_reply({
        **broker.placement.described(None if moved else sees), "gateways": broker.gateways,
        "partitions": {name: whole.count for name, whole in wholes if sees(name)},
    })  # fmt: skip
