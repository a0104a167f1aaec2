"""Topics in a definitions file, partitioned ones as a whole: describe those of a broker, and plan the changes to it.

A partitioned topic is one ``[[topic]]`` with ``partitions = N``; its settings and consumers are those of all its partitions. A
partition that differs follows as a topic of its own, ``orders#3``. ADR 0228. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from toymq_py.consumer_options import EARLIEST, Start
from toymq_py.errors import ConfigError
from toymq_py.names import DEAD_LETTERS, is_dead_letters, whole_name
from toymq_py.partitions import PARTITIONS, common_settings, number_of
from toymq_py.setting_units import format_setting

Settings = dict[str, str]
"""Settings by name, as in CREATE: whole numbers and words."""


@dataclass(frozen=True, slots=True)
class TopicDefinition:
    """A topic that shall exist. ``consumers``: the start position of each consumer, used if it is new."""

    settings: Settings
    consumers: dict[str, Start]
    partitions: int = 0
    """The number of partitions; 0 for a topic without."""
    parts: dict[str, "TopicDefinition"] = field(default_factory=dict, compare=False)
    """The partitions that were seen of a partitioned topic that exists."""


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """A topic to create. ``refusal``: why the broker would refuse it, and the remedy; None if no reason is known in advance."""

    topic: str
    settings: Settings
    partitions: int = 0
    refusal: str | None = None
    verb: ClassVar = "create-topic"

    @property
    def words(self) -> Settings:
        """The settings that the verb CREATE takes, with the number of partitions."""
        return {**({PARTITIONS: str(self.partitions)} if self.partitions else {}), **self.settings}

    def __str__(self) -> str:
        return " ".join(["+ topic", self.topic, *(f"{key}={format_setting(key, text)}" for key, text in self.words.items())])


@dataclass(frozen=True, slots=True)
class ChangeSettings:
    """Settings to change. ``settings`` and ``before`` have the same keys; the value ``default`` means not set."""

    topic: str
    settings: Settings
    before: Settings
    verb: ClassVar = "change-settings"

    def __str__(self) -> str:
        changes = (
            f"{key}={format_setting(key, self.before[key])} -> {format_setting(key, text)}"
            for key, text in self.settings.items()
        )
        return f"~ topic {self.topic} {', '.join(changes)}"


@dataclass(frozen=True, slots=True)
class MakeConsumer:
    topic: str
    consumer: str
    start: Start
    verb: ClassVar = "make-consumer"

    def __str__(self) -> str:
        return f"+ consumer {self.topic} {self.consumer} start={self.start}"


TopicChange = CreateTopic | ChangeSettings | MakeConsumer


def described_topics(rows: Iterable[Mapping[str, Any]], counts: Mapping[str, int]) -> dict[str, TopicDefinition]:
    """The topics of a broker, from the JSON objects of TOPICS.

    Args:
        counts: the number of partitions of each partitioned topic; the rows need not have all of them.

    Raises: ConfigError for a topic that the broker could not open: its settings are unknown.
    """
    topics: dict[str, TopicDefinition] = {}
    parts: dict[str, dict[str, TopicDefinition]] = {name: {} for name in counts}
    for row in sorted(rows, key=lambda row: str(row["topic"])):
        name = str(row["topic"])
        if "problem" in row:
            raise ConfigError(f"topic {name}: {row['problem']}")
        settings = {key: str(value) for key, value in row["settings"].items()}
        names = sorted(consumer["consumer"] for consumer in row["consumers"])
        consumers = {name: EARLIEST for name in names if not name.startswith("#")}  # those are the broker's own
        if number_of(name) is not None and whole_name(name) in counts:
            parts[whole_name(name)][name] = TopicDefinition(settings, consumers)
        else:
            topics[name] = TopicDefinition(settings, consumers)
    for name, found in parts.items():
        topics |= _whole(name, counts[name], found)
    return dict(sorted(topics.items()))


def _whole(name: str, count: int, parts: dict[str, TopicDefinition]) -> dict[str, TopicDefinition]:
    """A partitioned topic with the settings that most of its partitions have, and the partitions that differ."""
    kinds = Counter(tuple(sorted(part.settings.items())) for part in parts.values())
    most = dict(kinds.most_common(1)[0][0]) if kinds else {}
    settings = next((part.settings for part in parts.values() if part.settings == most), most)
    consumers = common_settings([part.consumers for part in parts.values()])
    found = {name: TopicDefinition(settings, consumers, count, parts)}
    for one, part in parts.items():
        own = {consumer: start for consumer, start in part.consumers.items() if consumer not in consumers}
        if own or part.settings != settings:
            found[one] = TopicDefinition(part.settings, own)
    return found


def plan_topics(wanted: Mapping[str, TopicDefinition], present: Mapping[str, TopicDefinition]) -> Iterator[TopicChange]:
    """The changes that turn ``present`` into ``wanted``, in the order in which to make them."""
    for name, topic in wanted.items():
        found = present.get(name)
        if topic.partitions and found is not None and topic.partitions != found.partitions:
            yield CreateTopic(name, topic.settings, topic.partitions, _other_number(found.partitions))
        elif found is not None and found.partitions:
            yield from _plan_whole(name, topic, found, wanted)
        elif number_of(name) is not None:
            yield from _plan_part(name, topic, wanted, present)
        else:
            yield from _plan_one(name, topic, found)


def _other_number(there: int) -> str:
    if not there:
        return "it exists and is not partitioned: delete it first, or take another name"
    return f"it exists with {PARTITIONS}={there}, and the number is fixed at creation: write {there}, or take another name"


def _plan_one(name: str, topic: TopicDefinition, found: TopicDefinition | None) -> Iterator[TopicChange]:
    if found is None:
        yield CreateTopic(name, topic.settings, topic.partitions)
    elif topic.settings != found.settings:
        yield _settings_change(name, topic.settings, found.settings)
    known = found.consumers if found is not None else {}
    for consumer, start in topic.consumers.items():
        if consumer not in known:
            yield MakeConsumer(name, consumer, start)


def _plan_whole(
    name: str, topic: TopicDefinition, found: TopicDefinition, wanted: Mapping[str, TopicDefinition]
) -> Iterator[TopicChange]:
    """Plan the changes of a partitioned topic: one change to the whole if all partitions need it, otherwise one for each
    partition that does. So no position moves, and a partition that the file also names by itself is not changed twice."""
    differing = [one for one, part in found.parts.items() if one not in wanted and part.settings != topic.settings]
    befores = [found.parts[one].settings for one in differing]
    if differing and len(differing) == len(found.parts) and all(before == befores[0] for before in befores):
        yield _settings_change(name, topic.settings, befores[0])
    else:
        for one, before in zip(differing, befores, strict=True):
            yield _settings_change(one, topic.settings, before)
    for consumer, start in topic.consumers.items():
        lacking = [one for one, part in found.parts.items() if consumer not in part.consumers]
        for one in [name] if lacking and len(lacking) == len(found.parts) else lacking:
            yield MakeConsumer(one, consumer, start)


def _plan_part(
    name: str, topic: TopicDefinition, wanted: Mapping[str, TopicDefinition], present: Mapping[str, TopicDefinition]
) -> Iterator[TopicChange]:
    """Plan the changes of one partition, or of its dead letters."""
    whole = whole_name(name).removesuffix(DEAD_LETTERS)
    there, coming = present.get(whole), wanted.get(whole)
    if there is None and coming is None and name not in present:
        remedy = f'define the whole, name = "{whole}" and {PARTITIONS} = N, before it'
        yield CreateTopic(name, topic.settings, refusal=f"it is a partition of {whole}, which is not there: {remedy}")
        return
    found = there.parts.get(name) if there is not None else None
    if found is None:
        found = present.get(name)
    if found is None and there is None and coming is not None and not is_dead_letters(name):
        found = TopicDefinition(coming.settings, {})  # as it is made with the whole
    of_whole = coming.consumers if coming is not None and not is_dead_letters(name) else {}
    own = {consumer: start for consumer, start in topic.consumers.items() if consumer not in of_whole}
    yield from _plan_one(name, TopicDefinition(topic.settings, own), found)


def _settings_change(name: str, wanted: Settings, found: Settings) -> ChangeSettings:
    keys = [key for key in {**wanted, **found} if wanted.get(key) != found.get(key)]
    return ChangeSettings(
        name, {key: wanted.get(key, "default") for key in keys}, {key: found.get(key, "default") for key in keys}
    )
