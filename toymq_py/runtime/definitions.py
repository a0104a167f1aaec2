"""Definitions applied to an open broker, at the start of ``toymq serve`` and by ``toymq definitions``."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from toymq_py import partition_operations
from toymq_py.broker import Broker, Done
from toymq_py.config.alerts import Alert
from toymq_py.config.amqp_definitions import Declare
from toymq_py.config.definitions import (
    Change,
    Definitions,
    PutAlert,
    PutWebhook,
    described,
    done_before,
    plan,
)
from toymq_py.config.topic_definitions import ChangeSettings, CreateTopic, MakeConsumer, TopicChange
from toymq_py.config.webhooks import Webhook
from toymq_py.consumer_options import EARLIEST
from toymq_py.errors import BadArgument, ConfigError, DamagedData, RequestError, StorageFailed
from toymq_py.names import whole_name
from toymq_py.partitioned_topics import for_each
from toymq_py.storage import alerts_file
from toymq_py.storage.webhooks_file import FILE_NAME

logger = logging.getLogger("toymq_py.broker")


async def apply_definitions(wanted: Definitions, broker: Broker) -> list[Change]:
    """Apply definitions to an open broker, durably; exchanges, queues and bindings are for its AMQP server to declare.

    Returns: what was changed.

    Raises: ConfigError, which names the topic; what was changed before it stays.
    """
    webhooks = read_webhooks(broker) if wanted.webhooks else {}
    alerts = read_alerts(broker) if wanted.alerts else {}
    # A topic that could not be opened does not stop the others (reliability.md, promise 4).
    rows = [row for row in broker.describe(None) if wanted.topics.keys() & _names(row)] if wanted.topics else []
    changes = plan(replace(wanted, amqp={}), described(rows, partition_counts(broker), webhooks, alerts))
    distrusted = {name for row in rows if "settings_problem" in row for name in _names(row)}
    puts = [change for change in changes if isinstance(change, PutWebhook)]
    rules = [change for change in changes if isinstance(change, PutAlert)]
    for at, change in enumerate(changes):
        if isinstance(change, PutWebhook | PutAlert | Declare):
            continue
        if (error := await _made(partial(_begin, change, broker))) is not None:
            if change.topic in distrusted and isinstance(error, OSError | StorageFailed):  # nor does one whose file is stuck
                logger.error("topic %s: its definition is not applied: %s", change.topic, error)
                continue
            raise ConfigError(f"topic {change.topic}: {error}{done_before(changes[:at])}") from error
    if puts:
        webhooks |= {put.name: put.webhook for put in puts}
        if (error := await _made(partial(broker.directory.store_webhooks, webhooks))) is not None:
            done = (each for each in changes if each not in puts and each not in rules)
            raise ConfigError(f"{FILE_NAME}: {error}{done_before(done)}") from error
    if rules:
        alerts |= {put.name: put.alert for put in rules}
        if (error := await _made(partial(broker.directory.store_alerts, alerts))) is not None:
            done = (each for each in changes if each not in rules)
            raise ConfigError(f"{alerts_file.FILE_NAME}: {error}{done_before(done)}") from error
    return changes


def _names(row: Mapping[str, Any]) -> set[str]:
    """The name of a topic, and that of the partitioned topic it is a partition of."""
    return {row["topic"], whole_name(row["topic"])}


def partition_counts(broker: Broker) -> dict[str, int]:
    """The number of partitions of each partitioned topic."""
    return {name: whole.count for name, whole in broker.partitioned.by_name.items()}


def read_webhooks(broker: Broker) -> dict[str, Webhook]:
    """The webhooks of an open broker, by name. Blocks. Raises: ConfigError when they cannot be read."""
    try:
        return broker.directory.read_webhooks()
    except (OSError, DamagedData) as error:
        raise ConfigError(f"{FILE_NAME} cannot be read: {error}") from error


def read_alerts(broker: Broker) -> dict[str, Alert]:
    """The alert rules of an open broker, by name. Blocks. Raises: ConfigError when they cannot be read."""
    try:
        return broker.directory.read_alerts()
    except (OSError, DamagedData) as error:
        raise ConfigError(f"{alerts_file.FILE_NAME} cannot be read: {error}") from error


def openable(wanted: Definitions, broker: Broker) -> Definitions:
    """The definitions, without the topics that the broker could not open when it started: it serves the others."""
    rows = broker.describe(None) if wanted.topics else []
    problems = {name: row["problem"] for row in rows if "problem" in row for name in _names(row)}
    for name in sorted(problems.keys() & wanted.topics.keys()):
        logger.error("topic %s: its definition is not applied: %s", name, problems[name])
    return replace(wanted, topics={name: topic for name, topic in wanted.topics.items() if name not in problems})


async def _made(begin: Callable[[Done], None]) -> OSError | RequestError | None:
    """Begin a change and wait until it is on stable storage. Returns: why it failed, or None."""
    finished: asyncio.Future[OSError | RequestError | None] = asyncio.get_running_loop().create_future()
    try:
        begin(finished.set_result)
        return await finished
    except (RequestError, OSError) as refusal:
        return refusal


def _begin(change: TopicChange, broker: Broker, done: Done) -> None:
    match change:
        case CreateTopic(refusal=str(refusal)):
            raise BadArgument(refusal)
        case CreateTopic():
            partition_operations.create(broker, change.topic, change.words, done)
        case ChangeSettings():
            partition_operations.configure(broker, change.topic, change.settings, done)
        case MakeConsumer():
            members = broker.partitioned.members(change.topic)
            for_each(members or [change.topic], partial(_make_consumer, change, broker), done)


def _make_consumer(change: MakeConsumer, broker: Broker, name: str, done: Done) -> None:
    topic = broker.topic(name)
    # The seek moves no consumer: this one is new, or its state is lost.
    topic.seek(change.consumer, EARLIEST if topic.offsets.lacks_consumers else change.start)
    topic.flush_offsets(done)
