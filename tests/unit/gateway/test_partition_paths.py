"""The path of a publish to a partitioned topic becomes that of the partition."""

from typing import Any
from zlib import crc32

import pytest

from tests.support.http_rig import HttpRig
from toymq_py.gateway.partition_paths import PartitionPaths
from toymq_py.partitions import Partitioned


@pytest.fixture
def paths(rig: HttpRig) -> PartitionPaths:
    assert rig.gateway is not None
    rig.broker.partitioned.by_name["orders"] = Partitioned("orders", 4)
    return PartitionPaths(rig.gateway)


def scope(path: str, method: str = "POST", **headers: str) -> dict[str, Any]:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"method": method, "path": path, "raw_path": path.encode(), "headers": named}


async def test_a_route_goes_before_a_group_and_a_group_before_a_key(paths: PartitionPaths) -> None:
    found = {"x_route": "r", "x_header_toymq_group": "g", "idempotency_key": "k"}
    for name in ("r", "g", "k"):
        one = scope("/v1/topics/orders/messages", **found)
        paths.rewrite(one)
        partition = crc32(name.encode()) % 4
        assert (one["path"], one["raw_path"]) == (
            f"/v1/topics/orders#{partition}/messages", b"/v1/topics/orders%%23%d/messages" % partition,
        )  # fmt: skip
        paths.rewrite(one)
        assert one["path"].endswith(f"#{partition}/messages"), "once"
        del found[next(iter(found))]


async def test_without_a_route_they_go_in_turn(paths: PartitionPaths) -> None:
    found = []
    for _ in range(5):
        one = scope("/v1/topics/orders/messages")
        paths.rewrite(one)
        found.append(one["path"][18])
    assert found == ["0", "1", "2", "3", "0"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/topics/orders/messages"), ("POST", "/v1/topics/other/messages"),
        ("POST", "/v1/topics/orders/messages:batch"),
        ("POST", "/v1/topics/orders#1/messages"), ("POST", "/q/orders/messages"), ("PUT", "/v1/topics/orders"),
    ],
)  # fmt: skip
async def test_all_others_stay(paths: PartitionPaths, method: str, path: str) -> None:
    one = scope(path, method)
    paths.rewrite(one)
    assert one["path"] == path
