"""The settings in force of a topic, and the source of each."""

import random
from dataclasses import fields
from pathlib import Path
from typing import Any

from tests.support.http_rig import HttpRig, gateway, refused
from tests.support.http_tokens import bearer, three_tokens
from tests.support.sim_disk import SimDisk
from toymq_py.config.options import ServeOptions
from toymq_py.config.topic_settings import TopicSettings
from toymq_py.gateway.settings_operations import in_force

DIR = "/data/d"


async def asked(rig: HttpRig, topic: str) -> dict[str, dict[str, Any]]:
    answer = await rig.ask("GET", f"/v1/topics/{topic}/settings")
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert found["topic"] == topic
    return {each.pop("setting"): each for each in found["settings"]}


async def test_a_value_is_of_the_topic_or_the_default() -> None:
    async with gateway(DIR, fs=SimDisk(random.Random(1))) as rig:
        await rig.ask("PUT", "/v1/topics/t", json={"visibility": 90_000, "when_full": "drop-oldest"})
        found = await asked(rig, "t")
        assert list(found) == [each.name for each in fields(TopicSettings)]
        assert found["visibility"] == {"value": 90_000, "from": "topic", "default": 30_000, "option": "visibility"}
        assert found["max_attempts"] == {"value": 20, "from": "default", "default": 20, "option": "max_attempts"}
        assert found["ttl"] == {"value": None, "from": "default", "default": None, "option": None}
        assert (found["when_full"]["value"], found["when_full"]["default"]) == ("drop-oldest", "reject")
        await rig.ask("PATCH", "/v1/topics/t", json={"visibility": None, "when_full": None})
        found = await asked(rig, "t")
        assert (found["visibility"]["value"], found["visibility"]["from"]) == (30_000, "default")
        assert found["when_full"]["value"] == "reject"
        refused(await rig.ask("GET", "/v1/topics/none/settings"), 404, "NO_SUCH_TOPIC")


async def test_the_value_that_is_said_is_the_one_in_use() -> None:
    async with gateway(DIR, fs=SimDisk(random.Random(1))) as rig:
        await rig.ask("PUT", "/v1/topics/t", json={"nack_backoff_min": 250})
        topic = rig.broker.topic("t")
        for name in ("visibility", "nack_backoff_min", "nack_backoff_max", "max_attempts", "dedupe_keys", "retain_acked_for"):
            assert (await asked(rig, "t"))[name]["value"] == topic.settings.value("t", name, rig.broker.options), name


async def test_an_option_of_the_broker_is_named_and_letters_are_never_given_up(tmp_path: Path) -> None:
    async with gateway(DIR, fs=SimDisk(random.Random(1))) as rig:
        for name in ("t", "t.dlq"):
            await rig.ask("PUT", f"/v1/topics/{name}")
        options = ServeOptions(str(tmp_path), max_attempts=3, sources={"max_attempts": "--max-attempts"})
        found = {each["setting"]: each for each in in_force("t", [{}], options)}
        assert (found["max_attempts"]["value"], found["max_attempts"]["from"]) == (3, "option")
        assert found["visibility"]["from"] == "default"
        found = {each["setting"]: each for each in in_force("t.dlq", [{}], options)}
        assert (found["max_attempts"]["value"], found["max_attempts"]["from"]) == (0, "dead letters")


async def test_a_partitioned_topic_has_what_all_its_partitions_have() -> None:
    """Found: the request was refused as PARTITIONED."""
    async with gateway(DIR, fs=SimDisk(random.Random(1))) as rig:
        await rig.ask("PUT", "/v1/topics/t", json={"partitions": 3, "visibility": 90_000})
        await rig.ask("PATCH", "/v1/topics/t%231", json={"ttl": 5000})
        found = await asked(rig, "t")
        assert (found["visibility"]["value"], found["visibility"]["from"]) == (90_000, "topic")
        assert found["ttl"] == {"value": None, "from": "partitions", "default": None, "option": None}
        assert (found["max_attempts"]["value"], found["max_attempts"]["from"]) == (20, "default")


async def test_it_is_shown_to_those_that_may_see_the_topic() -> None:
    async with gateway(DIR, fs=SimDisk(random.Random(1)), authority=three_tokens()) as rig:
        for name in ("orders.new", "salaries"):
            await rig.ask("PUT", f"/v1/topics/{name}", headers=bearer("operator"))
        assert (await rig.ask("GET", "/v1/topics/orders.new/settings", headers=bearer("billing"))).status_code == 200
        refused(await rig.ask("GET", "/v1/topics/salaries/settings", headers=bearer("billing")), 403, "FORBIDDEN")
