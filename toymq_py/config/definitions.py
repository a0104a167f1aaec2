"""Definitions: the topics, settings and consumers that a broker shall have, as a file that a repository can keep.

A topic in the file gets exactly the settings of the file; a consumer that does not exist yet is made at its ``start``. What the
file does not name is left alone, and no consumer's position is moved. So a file may be applied again and again.

    [[topic]]
    name = "orders"
    visibility = "2m"

    [[topic.consumer]]
    name = "billing"
    start = "latest"            # earliest unless told, an id, or @<unix-ms>

    [[topic]]
    name = "jobs"
    partitions = 8              # fixed at creation

    [[webhook]]
    name = "hooks"
    topic = "orders"
    url = "https://example.com/orders"
    secret = "whsec_..."        # set if the webhook is new or has none; exports show no secrets

    [[alert]]
    name = "late"
    when = "lag"
    topic = "orders"
    threshold = 10000
    for = "5m"
    to = "alerts"

Topics are in ``topic_definitions.py``, exchanges, queues and bindings in ``amqp_definitions.py``. JSON has the same keys.
Contract: clients.md, "Command lines" (--definitions); delivery.md, "Per-topic settings". Knows no file, no wire and no broker:
``plan`` compares with the answers of DESCRIBE, whoever asked for them.
"""

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from toymq_py.config import amqp_definitions
from toymq_py.config.alerts import Alert
from toymq_py.config.amqp_definitions import AmqpDefinition, Declare, Key
from toymq_py.config.option_schema import did_you_mean, shown_key
from toymq_py.config.topic_definitions import (
    MakeConsumer,
    Settings,
    TopicChange,
    TopicDefinition,
    described_topics,
    plan_topics,
)
from toymq_py.config.topic_settings import TopicSettings
from toymq_py.config.webhooks import Webhook, check_webhook_name
from toymq_py.consumer_options import EARLIEST, Start
from toymq_py.errors import BadArgument, BadName, ConfigError
from toymq_py.names import check_name
from toymq_py.partitions import PARTITIONS, check_whole_name, parse_partitions
from toymq_py.setting_units import SETTINGS, format_setting, parse_setting, setting_doubt


@dataclass(frozen=True, slots=True)
class Definitions:
    """Topics, consumers, webhooks, alerts, exchanges, queues and bindings that a broker shall have, by name."""

    topics: dict[str, TopicDefinition] = field(default_factory=dict)
    webhooks: dict[str, Webhook] = field(default_factory=dict)
    """Webhooks by name. From a broker over HTTP, ``secret`` is ``SIGNED`` or None."""
    alerts: dict[str, Alert] = field(default_factory=dict)
    """Alerts by name; their secrets as of ``webhooks``."""
    amqp: dict[Key, AmqpDefinition] = field(default_factory=dict)
    """AMQP exchanges, then queues, then bindings; a queue's topic has its settings in ``topics``."""
    doubts: list[str] = field(default_factory=list, compare=False)
    """Durations of a TOML file that were most likely meant in seconds, a line for each. JSON is what an export writes, in
    milliseconds."""


# -- reading


def parse(text: str, source: str) -> Definitions:
    """Parse definitions in TOML, or in JSON when the text begins with ``{``.

    Args:
        source: what an error names, such as the file.

    Raises: ConfigError, which names source, topic and key.
    """
    try:
        is_json = text.lstrip().startswith("{")
        found = json.loads(text) if is_json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: neither TOML nor JSON: {error}") from error
    definitions = Definitions()
    for key, entries in found.items():
        read = _SECTIONS.get(key)
        if read is None:
            hint = did_you_mean(key, _SECTIONS) or f"; there are {', '.join(_SECTIONS)}"
            raise ConfigError(f"{source}: there is no section {shown_key(key)}{hint}")
        for where, entry in _named(entries, source, key):
            read(definitions, where, entry)
            if not is_json and key == "topic":
                asked = ((name, setting_doubt(name, value)) for name, value in entry.items())
                definitions.doubts.extend(f"{where}: {name} {doubt}" for name, doubt in asked if doubt is not None)
    return definitions


def _read_topic(definitions: Definitions, where: str, entry: dict[str, Any]) -> None:
    name = _checked_name(where, "topic", entry)
    if name in definitions.topics:
        raise ConfigError(f"{where} stands twice")
    consumers: dict[str, Start] = {}
    for consumer_where, consumer in _named(entry.get("consumer", []), where, "consumer"):
        _read_consumer(consumers, consumer_where, consumer)
    partitions = _read_partitions(where, name, entry[PARTITIONS], consumers) if PARTITIONS in entry else 0
    settings = {key: value for key, value in entry.items() if key not in ("name", "consumer", PARTITIONS)}
    definitions.topics[name] = TopicDefinition(_read_settings(where, settings), consumers, partitions)


def _read_partitions(where: str, name: str, value: Any, consumers: Mapping[str, Start]) -> int:
    try:
        check_whole_name(name)
        count = parse_partitions(_text(value))
    except (BadArgument, BadName, ConfigError) as error:
        raise ConfigError(f"{where}: {PARTITIONS}: {error}") from None
    for consumer, start in consumers.items():
        if start.kind == "id":
            remedy = f"define {name}#0 for itself"
            raise ConfigError(f"{where}: consumer {consumer}: start: {start} is an id of one partition: {remedy}")
    return count


def _read_webhook(definitions: Definitions, where: str, entry: dict[str, Any]) -> None:
    try:
        name = check_webhook_name(_checked_name(where, "webhook", entry))
        webhook = Webhook.from_json({key: value for key, value in entry.items() if key != "name"}).check_secret()
    except (BadArgument, BadName) as error:
        raise ConfigError(f"{where}: {error}") from None
    if name in definitions.webhooks:
        raise ConfigError(f"{where} stands twice")
    definitions.webhooks[name] = webhook


def _read_alert(definitions: Definitions, where: str, entry: dict[str, Any]) -> None:
    name = _checked_name(where, "alert", entry)
    try:
        alert = Alert.from_json({key: value for key, value in entry.items() if key != "name"}).check_secret()
    except (BadArgument, BadName) as error:
        raise ConfigError(f"{where}: {error}") from None
    if name in definitions.alerts:
        raise ConfigError(f"{where} stands twice")
    definitions.alerts[name] = alert


def _read_amqp(kind: str, definitions: Definitions, where: str, entry: dict[str, Any]) -> None:
    amqp_definitions.add(definitions.amqp, kind, where, entry)


_SECTIONS: dict[str, Callable[[Definitions, str, dict[str, Any]], None]] = {
    "topic": _read_topic, "webhook": _read_webhook, "alert": _read_alert,
    **{kind: partial(_read_amqp, kind) for kind in amqp_definitions.KINDS},
}  # fmt: skip
"""Top-level keys, each an array of tables, and the reader of one table."""


def _read_consumer(consumers: dict[str, Start], where: str, entry: dict[str, Any]) -> None:
    name = _checked_name(where, "consumer", entry)
    if name in consumers:
        raise ConfigError(f"{where} stands twice")
    for key in entry:
        if key not in ("name", "start"):
            raise ConfigError(f"{where}: a consumer has name and start, not {shown_key(key)}")
    try:
        consumers[name] = Start.parse_checked(_text(entry.get("start", "earliest")))
    except (BadArgument, ConfigError) as error:
        raise ConfigError(f"{where}: start: {error}") from None


def _read_settings(where: str, found: Mapping[str, Any]) -> Settings:
    settings: Settings = {}
    for name, value in found.items():
        if name not in SETTINGS:
            hint = did_you_mean(name, (*SETTINGS, "consumer", PARTITIONS)) or f"; there are {', '.join(SETTINGS)}"
            raise ConfigError(f"{where}: {name} is not a topic setting{hint}")
        try:
            text = parse_setting(name, _text(value))
            TopicSettings().changed({name: text})
        except (BadArgument, ConfigError) as error:
            raise ConfigError(f"{where}: {name}: {error}") from None
        if text != "default":
            settings[name] = text
    try:
        TopicSettings().changed(settings)
    except BadArgument as error:
        raise ConfigError(f"{where}: {error}") from None
    return settings


def _text(value: Any) -> str:
    """A value as the text that CREATE takes. Raises: ConfigError when it is neither text nor a number of at most 64 bits."""
    if isinstance(value, str):
        return value
    if type(value) is not int or value.bit_length() > 64:
        raise ConfigError("neither text nor a number within limits")
    return str(value)


def _named(entries: Any, where: str, kind: str) -> Iterable[tuple[str, dict[str, Any]]]:
    """The tables of an array, each with the words that name it in an error. Raises: ConfigError."""
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{where}: {kind} is an array of tables: [[{kind}]] in TOML")
    for number, entry in enumerate(entries, 1):
        name = entry.get("name")
        known = isinstance(name, str) and name.isascii() and name.isprintable()
        yield f"{where}: {kind} {name if known else f'number {number}'}", entry


def _checked_name(where: str, kind: str, entry: dict[str, Any]) -> str:
    name = entry.get("name")
    if not isinstance(name, str):
        raise ConfigError(f"{where}: it needs a name")
    try:
        return check_name(kind, name)
    except BadName as error:
        raise ConfigError(f"{where}: {error}") from None


# -- writing


def described(
    rows: Iterable[Mapping[str, Any]], counts: Mapping[str, int], webhooks: Mapping[str, Webhook] | None = None,
    alerts: Mapping[str, Alert] | None = None, amqp: Iterable[AmqpDefinition] = (),
) -> Definitions:  # fmt: skip
    """The definitions of a broker, from the JSON objects of TOPICS, its webhooks, its alerts and its AMQP declarations. The
    positions of consumers are state, not definitions, and left out.

    Args, Raises: as for ``described_topics``.
    """
    return Definitions(
        described_topics(rows, counts), dict(sorted((webhooks or {}).items())), dict(sorted((alerts or {}).items())),
        amqp_definitions.by_key(amqp),
    )  # fmt: skip


def to_json(definitions: Definitions) -> str:
    """Write definitions as JSON, which ``parse`` reads. Durations are in ms, sizes in bytes."""
    topics = []
    for name, topic in definitions.topics.items():
        settings = {key: int(text) if text.isdigit() else text for key, text in topic.settings.items()}
        consumers = [{"name": consumer, **_start(start)} for consumer, start in topic.consumers.items()]
        number = {PARTITIONS: topic.partitions} if topic.partitions else {}
        topics.append({"name": name, **number, **settings, **({"consumer": consumers} if consumers else {})})
    webhooks = [{"name": name, **_public(webhook)} for name, webhook in definitions.webhooks.items()]
    alerts = [{"name": name, **_public(alert)} for name, alert in definitions.alerts.items()]
    more = {"webhook": webhooks, "alert": alerts, **{kind: [] for kind in amqp_definitions.KINDS}}
    for each in definitions.amqp.values():
        more[each.kind].append(each.written)
    return json.dumps({"topic": topics, **{kind: found for kind, found in more.items() if found}}, indent=2) + "\n"


def to_toml(definitions: Definitions) -> str:
    """Write definitions as TOML, which ``parse`` reads. Names and settings need no escapes: they have no quotes."""
    parts = []
    for name, topic in definitions.topics.items():
        lines = ["[[topic]]", f'name = "{name}"']
        if topic.partitions:
            lines.append(f"{PARTITIONS} = {topic.partitions}")
        for key, text in topic.settings.items():
            shown = format_setting(key, text)
            lines.append(f"{key} = {shown}" if shown.isdigit() else f'{key} = "{shown}"')
        for consumer, start in topic.consumers.items():
            lines += ["", "[[topic.consumer]]", f'name = "{consumer}"']
            lines += [f'{key} = "{value}"' for key, value in _start(start).items()]
        parts.append("\n".join(lines) + "\n")
    for kind, found in (("webhook", definitions.webhooks), ("alert", definitions.alerts)):
        for name, each in found.items():
            fields = {"name": name, **_public(each)}
            # What JSON escapes in printable ASCII, TOML escapes alike.
            lines = [f"[[{kind}]]", *(f"{key} = {json.dumps(value)}" for key, value in fields.items())]
            if each.secret is not None:
                lines.append("# It is signed: what with, is not told.")
            parts.append("\n".join(lines) + "\n")
    return "\n".join([*parts, *map(amqp_definitions.toml_of, definitions.amqp.values())])


def _public(found: Webhook | Alert) -> dict[str, Any]:
    """The fields of a webhook or an alert, without its secret, so that a repository may keep them, and without None."""
    return {key: value for key, value in asdict(found).items() if key != "secret" and value is not None}


def _start(start: Start) -> dict[str, str]:
    return {} if start == EARLIEST else {"start": str(start)}


# -- comparing


@dataclass(frozen=True, slots=True)
class PutWebhook:
    """A webhook to put. ``webhook`` includes its old or new secret; ``before`` is None for a new webhook."""

    name: str
    webhook: Webhook = field(repr=False)
    before: Webhook | None = field(repr=False)
    verb: ClassVar = "put-webhook"

    def __str__(self) -> str:
        what = f"{self.webhook.topic} {self.webhook.url}"
        return _put_line("webhook", self.name, what, self.webhook, self.before)


@dataclass(frozen=True, slots=True)
class PutAlert:
    """An alert rule to put. ``alert`` includes its old or new secret; ``before`` is None for a new rule."""

    name: str
    alert: Alert = field(repr=False)
    before: Alert | None = field(repr=False)
    verb: ClassVar = "put-alert"

    def __str__(self) -> str:
        alert = self.alert
        of = f" {alert.topic}" if alert.topic is not None else ""
        what = f"{alert.when}{of} {alert.threshold} to {alert.url or f'topic {alert.to}'}"
        return _put_line("alert", self.name, what, alert, self.before)


def _put_line(kind: str, name: str, what: str, new: Webhook | Alert, before: Webhook | Alert | None) -> str:
    changes = _changes(new, before)
    if before is None:
        return f"+ {kind} {name} {what}" + (" signed" if changes else "")
    return f"~ {kind} {name} {', '.join(changes)}"


def _changes(new: Webhook | Alert, before: Webhook | Alert | None) -> list[str]:
    """The changed fields, and ``signed`` for a new secret."""
    members, old = _public(new), _public(before) if before is not None else {}
    names = {**members, **old} if old else {}
    changes = [f"{key}={old.get(key)} -> {members.get(key)}" for key in names if members.get(key) != old.get(key)]
    if new.secret is not None and (before is None or before.secret is None):
        changes.append("signed")
    return changes


Change = TopicChange | PutWebhook | PutAlert | Declare


def change_to_json(change: Change) -> dict[str, Any]:
    """A change as a JSON object for programs: ``change`` is the verb, other keys are its fields; settings as in CREATE."""
    if isinstance(change, PutWebhook):
        return {"change": change.verb, "webhook": change.name, **change.webhook.public()}
    if isinstance(change, PutAlert):
        return {"change": change.verb, "alert": change.name, **change.alert.public()}
    if isinstance(change, Declare):
        return {"change": change.verb, change.definition.kind: change.definition.written}
    values = {key: value for key, value in asdict(change).items() if key not in (PARTITIONS, "refusal") or value}
    if isinstance(change, MakeConsumer):
        values["start"] = str(change.start)
    return {"change": change.verb, **values}


def plan(wanted: Definitions, present: Definitions) -> list[Change]:
    """The changes that turn ``present`` into ``wanted``, in the order in which to make them; [] for none."""
    changes: list[Change] = list(plan_topics(wanted.topics, present.topics))
    for name, webhook in wanted.webhooks.items():
        before = present.webhooks.get(name)
        if _differs(webhook, before):
            kept = before.secret if before is not None else None
            changes.append(PutWebhook(name, replace(webhook, secret=webhook.secret or kept), before))
    for name, alert in wanted.alerts.items():
        rule = present.alerts.get(name)
        if _differs(alert, rule):
            kept = rule.secret if rule is not None and alert.url is not None else None
            changes.append(PutAlert(name, replace(alert, secret=alert.secret or kept), rule))
    return [*changes, *amqp_definitions.plan(wanted.amqp, present.amqp)]


def _differs(wanted: Webhook | Alert, before: Webhook | Alert | None) -> bool:
    """Whether a webhook or alert differs. An existing secret is never compared."""
    return before is None or _public(wanted) != _public(before) or (wanted.secret is not None and before.secret is None)


def done_before(changes: Iterable[Change]) -> str:
    """The end of an error's text: the changes that were made before the error, and stay; "" for none."""
    made = "; ".join(map(str, changes))
    return f"; changed before that: {made}" if made else ""
