"""Requests about a partitioned topic, with one process; ``tests/e2e/test_partitions_http.py`` has two."""

from tests.support.http_rig import HttpRig, refused


async def test_the_description_is_of_all_partitions(rig: HttpRig) -> None:
    made = await rig.ask("PUT", "/v1/topics/orders", json={"partitions": 3, "ttl": 60_000})
    assert (made.status_code, made.json()["partitions"]) == (201, 3)
    await rig.publish("orders", *"abcd")
    found = (await rig.ask("GET", "/v1/topics/orders")).json()
    assert ([part["messages"] for part in found["parts"]], found["settings"]) == ([2, 1, 1], {"ttl": 60_000})
    assert found["messages"] == 4
    assert (await rig.ask("POST", "/v1/topics/orders:purge")).json() == {"purged": 4}


async def test_a_consumer_is_that_of_all_partitions(rig: HttpRig) -> None:
    await rig.ask("PUT", "/v1/topics/orders", json={"partitions": 3})
    await rig.publish("orders", *"abcd")
    refused(await rig.ask("GET", "/v1/topics/orders/consumers/c"), 404, "NO_SUCH_CONSUMER")
    moved = {"seek": "latest", "create": False}
    refused(await rig.ask("PUT", "/v1/topics/orders/consumers/c", json=moved), 404, "NO_SUCH_CONSUMER")
    assert (await rig.ask("PUT", "/v1/topics/orders/consumers/c", json={"seek": "earliest"})).json()["backlog"] == 4
    assert (await rig.ask("DELETE", "/v1/topics/orders/consumers/c")).status_code == 204
    refused(await rig.ask("DELETE", "/v1/topics/orders/consumers/c"), 404, "NO_SUCH_CONSUMER")


async def test_alerts_and_webhooks_take_the_pattern(rig: HttpRig) -> None:
    await rig.ask("PUT", "/v1/topics/orders", json={"partitions": 3})
    rule = {"when": "lag", "topic": "orders", "threshold": 1, "to": "alerts"}
    detail = refused(await rig.ask("PUT", "/v1/alerts/late", json=rule), 422, "BAD_ARGUMENT")["detail"]
    assert detail == "orders is partitioned: write orders#*, or one of its partitions"
    assert (await rig.ask("PUT", "/v1/alerts/late", json={**rule, "topic": "orders#*"})).status_code == 201
