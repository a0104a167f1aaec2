"""Definitions applied to a broker. Contract: clients.md, "Command lines" (--definitions)."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.in_process import serving
from toymq_py.clock import SystemClock
from toymq_py.config.alerts import Alert
from toymq_py.config.definitions import (
    Definitions,
    described,
    parse,
    plan,
    to_json,
    to_toml,
)
from toymq_py.config.topic_definitions import ChangeSettings, CreateTopic, MakeConsumer, TopicDefinition
from toymq_py.config.webhooks import Webhook
from toymq_py.consumer_options import EARLIEST, LATEST, Start
from toymq_py.errors import ConfigError
from toymq_py.gateway.request_context import Gateway
from toymq_py.runtime.definitions import apply_definitions, openable, partition_counts, read_alerts, read_webhooks
from toymq_py.storage import alerts_file, webhooks_file

SETTINGS = {"visibility": "120000", "retain_acked_for": "604800000"}
AT_EARLIEST = TopicDefinition(SETTINGS, {"billing": EARLIEST, "audit": EARLIEST})
WANTED = Definitions({
    "orders.eu": TopicDefinition(SETTINGS, {"billing": LATEST, "audit": EARLIEST}),
    "plain": TopicDefinition({}, {}),
})  # fmt: skip
SECRET = "whsec_" + "c2VjcmV0" * 3
HOOK = Webhook("orders.*", 'https://example.com/a?b="c"\\d', timeout_ms=500)


async def test_a_broker_is_made_to_have_it(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        wire = await served.connect()
        assert await wire.ask(b"PUB orders.eu - 1\nx\n") == b"OK 0"
        assert await wire.ask(b"CONFIG orders.eu dedupe_keys=7\n") == b'JSON 18'
        await wire.line()
        assert await wire.ask(b"SUB orders.eu audit\n") == b"OK 1"
        assert await wire.message() == (0, 1, b"x")
        assert await wire.ask(b"ACK orders.eu audit 0 sync=1\n") == b"OK 1"
        changes = await apply_definitions(WANTED, served.broker)
        assert list(map(type, changes)) == [ChangeSettings, MakeConsumer, CreateTopic]
        assert await apply_definitions(WANTED, served.broker) == [], "idempotent"
        await wire.nothing_before_pong()
        billing, audit = (served.broker.topic("orders.eu").channel(name).consumer for name in ("billing", "audit"))
        assert (billing.floor, audit.floor) == (1, 1), "a new one at the end, the other where it was"
    async with serving(tmp_path / "d") as served:
        assert described(served.broker.describe(None), {}) == replace(WANTED, topics=WANTED.topics | {"orders.eu": AT_EARLIEST})
        assert plan(WANTED, described(served.broker.describe(None), {})) == [], "all of it was on the disk"


async def test_a_refusal_names_the_topic(tmp_path: Path) -> None:
    async with serving(tmp_path / "d", max_topics=1) as served:
        with pytest.raises(ConfigError, match=r"topic plain: there are 1 topics, the limit \(--max-topics\)"):
            await apply_definitions(WANTED, served.broker)
        out_of_range = Definitions({"orders.eu": TopicDefinition({}, {"late": Start("id", 9)})})
        with pytest.raises(ConfigError, match=r"topic orders\.eu: 0 is the first id"):
            await apply_definitions(out_of_range, served.broker)


async def test_webhooks_are_kept_with_their_secrets(tmp_path: Path) -> None:
    """The gateway reads what was applied; an unreadable file is refused and not overwritten."""
    text = to_toml(Definitions(webhooks={"h": HOOK, "s": HOOK})) + f'secret = "{SECRET}"\n'
    async with serving(tmp_path / "d") as served:
        wanted = parse(text, "x")
        assert [str(change).split()[:3] for change in await apply_definitions(wanted, served.broker)] == [
            ["+", "webhook", "h"], ["+", "webhook", "s"],
        ]  # fmt: skip
        assert await apply_definitions(wanted, served.broker) == [], "idempotent"
        changed = Definitions(webhooks={"s": replace(HOOK, concurrency=9)})
        assert len(await apply_definitions(changed, served.broker)) == 1
        loop = asyncio.get_running_loop()
        gateway = Gateway(served.broker, SystemClock(), loop)
        assert gateway.webhooks.defined == {"h": HOOK, "s": replace(HOOK, concurrency=9, secret=SECRET)}
        exported = described(served.broker.describe(None), {}, read_webhooks(served.broker))
        assert SECRET not in to_toml(exported) + to_json(exported)
        assert "# It is signed" in to_toml(exported)
        (tmp_path / "d" / webhooks_file.FILE_NAME).write_text("{}")
        with pytest.raises(ConfigError, match=r"webhooks\.json cannot be read"):
            await apply_definitions(wanted, served.broker)
        assert (tmp_path / "d" / webhooks_file.FILE_NAME).read_text() == "{}"


async def test_alerts_are_kept_with_their_secrets(tmp_path: Path) -> None:
    """As for webhooks, the gateway reads what was applied."""
    rule = Alert.from_json({"when": "letters", "topic": ">", "url": "https://example.com/", "secret": SECRET})
    async with serving(tmp_path / "d") as served:
        wanted = Definitions(alerts={"dead": rule})
        assert [change.verb for change in await apply_definitions(wanted, served.broker)] == ["put-alert"]
        assert await apply_definitions(wanted, served.broker) == [], "idempotent"
        changed = replace(rule, for_ms=0, secret=None)
        assert len(await apply_definitions(Definitions(alerts={"dead": changed}), served.broker)) == 1
        gateway = Gateway(served.broker, SystemClock(), asyncio.get_running_loop())
        assert gateway.alerts.defined == {"dead": replace(rule, for_ms=0)}
        exported = described([], {}, {}, read_alerts(served.broker))
        assert SECRET not in to_toml(exported) + to_json(exported)
        (tmp_path / "d" / alerts_file.FILE_NAME).write_text("{}")
        with pytest.raises(ConfigError, match=r"alerts\.json cannot be read"):
            await apply_definitions(wanted, served.broker)
        assert (tmp_path / "d" / alerts_file.FILE_NAME).read_text() == "{}"


async def test_a_topic_that_could_not_be_opened_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path / "d") as served:
        await apply_definitions(WANTED, served.broker)
    file = tmp_path / "d" / "topics" / "orders.eu" / "topic.json"
    file.unlink()
    file.mkdir()  # what the disk cannot read
    async with serving(tmp_path / "d") as served:
        await apply_definitions(openable(WANTED, served.broker), served.broker)
        assert "plain" in served.broker.topics
        assert "topic orders.eu: its definition is not applied" in caplog.text


async def test_a_partitioned_topic_is_made_with_its_partitions(tmp_path: Path) -> None:
    """Found by a new user: a file could not describe a partitioned topic, and a broker did not start with an exported one."""
    whole = TopicDefinition({"visibility": "120000"}, {"work": LATEST}, 3)
    wanted = Definitions({"jobs": whole, "jobs#1": TopicDefinition({"ttl": "5000"}, {"odd": EARLIEST})})
    async with serving(tmp_path / "d") as served:
        made = await apply_definitions(wanted, served.broker)
        assert list(map(type, made)) == [CreateTopic, MakeConsumer, ChangeSettings, MakeConsumer]
        assert await apply_definitions(wanted, served.broker) == [], "idempotent"
        assert set(served.broker.topics) == {"jobs#0", "jobs#1", "jobs#2"}
        assert [row["settings"] for row in served.broker.describe(None)] == [
            {"visibility": 120_000}, {"ttl": 5000}, {"visibility": 120_000},
        ]  # fmt: skip
        exported = described(served.broker.describe(None), partition_counts(served.broker))
    async with serving(tmp_path / "new") as served:
        await apply_definitions(parse(to_toml(exported), "x"), served.broker)
        assert described(served.broker.describe(None), partition_counts(served.broker)) == exported
        more = Definitions({"jobs": replace(whole, partitions=4)})
        with pytest.raises(ConfigError, match="topic jobs: it exists with partitions=3, and the number is fixed at creation"):
            await apply_definitions(more, served.broker)


async def test_a_partition_that_could_not_be_opened_leaves_its_whole_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    wanted = Definitions({"jobs": TopicDefinition({}, {}, 2), "plain": TopicDefinition({}, {})})
    async with serving(tmp_path / "d") as served:
        await apply_definitions(wanted, served.broker)
    directory = tmp_path / "d" / "topics" / "jobs#1"
    directory.rename(tmp_path / "away")
    directory.write_text("a file in its place")
    async with serving(tmp_path / "d") as served:
        changed = Definitions({**wanted.topics, "jobs": TopicDefinition({"ttl": "5000"}, {}, 2)})
        assert await apply_definitions(openable(changed, served.broker), served.broker) == []
        assert "topic jobs: its definition is not applied" in caplog.text
