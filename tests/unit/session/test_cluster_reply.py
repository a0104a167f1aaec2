"""The reply to CLUSTER contains what one process knows by itself."""

import json
from types import SimpleNamespace
from typing import Any, cast

from toymq_py.broker import Broker
from toymq_py.partitions import Partitioned
from toymq_py.placement import Placement
from toymq_py.session.cluster_reply import cluster_reply


def told(sees: Any, *, moved: bool = False) -> dict[str, Any]:
    placement = Placement(1, ["h:1", "h:2 http://h:4/"], pids=[70, 0])
    wholes = {name: Partitioned(name, 3) for name in ("orders", "hidden")}
    broker = SimpleNamespace(placement=placement, gateways=["http://h:4/"], partitioned=SimpleNamespace(by_name=wholes))
    return dict(json.loads(cluster_reply(cast(Broker, broker), sees, moved=moved).partition(b"\n")[2]))


def test_it_has_the_gateways_the_processes_and_the_partitioned_topics_that_the_token_sees() -> None:
    found = told(lambda name: name != "hidden")
    assert found == {
        "worker": 1, "workers": [["h:1"], ["h:2", "http://h:4/"]], "pids": [70, 0], "gateways": ["http://h:4/"],
        "partitions": {"orders": 3},
    }  # fmt: skip


def test_a_client_that_follows_is_told_how_many_partitions_there_are_too() -> None:
    """Such a client asks with moved=1 between publishes: without it CLUSTER would end its following of MOVED."""
    assert told(lambda name: True, moved=True)["partitions"] == {"hidden": 3, "orders": 3}
