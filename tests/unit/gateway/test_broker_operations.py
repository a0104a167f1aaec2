"""The broker over HTTP: options with their sources, limits, tokens without secrets; for admins only."""

import random
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.http_rig import gateway, refused
from tests.support.http_tokens import bearer, three_tokens
from tests.support.sim_disk import SimDisk
from toymq_py.auth.tokens import Authority, parse_grants
from toymq_py.config.option_schema import options_of
from toymq_py.config.options import ServeOptions

DIR = "/data/d"
PATH = "/v1/broker"


def disk() -> SimDisk:
    return SimDisk(random.Random(1))


async def test_limits_disk_and_memory() -> None:
    async with gateway(DIR, fs=disk(), max_topics=7) as rig:
        await rig.publish("t", "a")
        rig.broker.quotas.memory_max_bytes = 123
        rig.broker.metrics.limit_reached("topics")
        found = (await rig.ask("GET", PATH)).json()
        limits = {each["limit"]: each for each in found["limits"]}
        assert limits["topics"] == {"limit": "topics", "used": 1, "max": 7, "refused_total": 1}
        assert set(limits) == {"connections", "topics", "held_bytes"}
        assert found["disk"]["log_bytes"] == rig.broker.topics["t"].log.size_bytes > 0
        assert found["disk"]["data_dir"] == DIR
        assert found["memory"]["max_bytes"] == 123
        assert (found["tokens"], found["tokens_total"]) == (None, 0)
        assert "cluster" not in found
        await rig.lease("t", "c")
        await rig.ask("POST", "/v1/topics/t/messages/0:nack", params={"consumer": "c", "dead": "true"})
        await rig.until(lambda: "t.dlq" in rig.broker.topics)
        limits = {each["limit"]: each for each in (await rig.ask("GET", PATH)).json()["limits"]}
        assert limits["topics"]["used"] == 1, "as --max-topics counts: no topic of dead letters beside its origin"


async def test_tokens_are_shown_without_what_opens_the_door() -> None:
    text = "".join(
        f'[[token]]\nname = "{name}"\nsha256 = "{sha256(name.encode()).hexdigest()}"\n{rights}\n'
        for name, rights in (
            ("boss", "admin = true"), ("old", 'subscribe = ["a.*"]\nexpires = 2020-01-01T00:00:00Z'),
            ("new", 'publish = ["b"]\nexpires = 2999-01-01T00:00:00Z'),
        )
    )  # fmt: skip
    async with gateway(DIR, fs=disk(), authority=Authority(parse_grants(text, "auth.toml"))) as rig:
        answer = await rig.ask("GET", PATH, headers={"authorization": "Bearer boss"})
        common = {"admin": False, "publish": [], "subscribe": [], "expires_ms": None, "expired": False}
        assert answer.json()["tokens"] == [
            common | {"name": "boss", "admin": True},
            common | {"name": "old", "subscribe": ["a.*"], "expires_ms": 1_577_836_800_000, "expired": True},
            common | {"name": "new", "publish": ["b"], "expires_ms": 32_472_144_000_000},
        ]
        for name in ("boss", "old", "new"):
            assert sha256(name.encode()).hexdigest() not in answer.text, "not even the digest"


async def test_admins_alone() -> None:
    async with gateway(DIR, fs=disk(), authority=three_tokens()) as rig:
        refused(await rig.ask("GET", PATH), 401, "AUTH_REQUIRED")
        refused(await rig.ask("GET", PATH, headers=bearer("billing")), 403, "FORBIDDEN")
        assert (await rig.ask("GET", PATH, headers=bearer("operator"))).status_code == 200


def test_options_say_where_they_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOYMQ_VISIBILITY", "50s")
    file = tmp_path / "toymq.toml"
    file.write_text('max_topics = 12\nvisibility = "45s"\n')
    options = ("--http", "127.0.0.1:0", "--config", str(file), "--max-attempts", "7")
    with BrokerProcess(tmp_path / "d", *options, executed=True) as broker:
        found = httpx.get(f"{broker.http}v1/broker").json()
    by_name = {each["option"]: each for each in found["options"]}
    assert list(by_name) == [each.name for each in options_of(ServeOptions)]
    wanted = {
        "max_topics": ("12", str(file)), "visibility": ("50s", "TOYMQ_VISIBILITY"), "max_attempts": ("7", "--max-attempts"),
        "dedupe_keys": ("65536", "default"), "auth_file": (None, "default"), "strict_recovery": ("false", "default"),
    }  # fmt: skip
    assert {name: (by_name[name]["value"], by_name[name]["from"]) for name in wanted} == wanted
    assert by_name["max_attempts"]["help"].startswith("Failed attempts after which")
    assert found["memory"]["max_bytes"] > 0, "the default is worked out"
