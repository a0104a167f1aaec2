"""Topics of definitions, partitioned ones as a whole. Contract: clients.md, "Command lines" (--definitions); ADR 0228."""

from typing import Any

import pytest

from toymq_py.config.definitions import Definitions, change_to_json, described, parse, plan, to_json, to_toml
from toymq_py.config.topic_definitions import ChangeSettings, CreateTopic, TopicDefinition
from toymq_py.consumer_options import EARLIEST, LATEST
from toymq_py.errors import ConfigError

WHOLE = """\
[[topic]]
name = "jobs"
partitions = 3
visibility = "2m"

[[topic.consumer]]
name = "work"
"""


def row(name: str, *consumers: str, **settings: Any) -> dict[str, Any]:
    return {"topic": name, "settings": settings, "consumers": [{"consumer": consumer} for consumer in consumers]}


def rows(count: int = 3, **settings: Any) -> list[dict[str, Any]]:
    return [row(f"jobs#{number}", "work", **settings) for number in range(count)]


def lines(wanted: Definitions, present: Definitions) -> list[str]:
    return [str(change) for change in plan(wanted, present)]


def test_a_partitioned_topic_is_written_as_a_whole() -> None:
    found = described([row("a"), *rows(visibility=120_000), row("z")], {"jobs": 3})
    assert list(found.topics) == ["a", "jobs", "z"]
    assert to_toml(found) == f'[[topic]]\nname = "a"\n\n{WHOLE}\n[[topic]]\nname = "z"\n'
    assert parse(to_toml(found), "x") == parse(to_json(found), "x") == found
    assert plan(found, found) == []


def test_it_is_made_with_its_number() -> None:
    wanted = parse(WHOLE, "x")
    made, _ = changes = plan(wanted, Definitions())
    assert list(map(str, changes)) == ["+ topic jobs partitions=3 visibility=2m", "+ consumer jobs work start=earliest"]
    assert change_to_json(made) == {
        "change": "create-topic", "topic": "jobs", "settings": {"visibility": "120000"}, "partitions": 3,
    }  # fmt: skip
    assert change_to_json(CreateTopic("a", {})) == {"change": "create-topic", "topic": "a", "settings": {}}


def test_one_that_is_there_gets_its_settings_and_consumers_once() -> None:
    wanted, present = parse(WHOLE + '[[topic.consumer]]\nname = "audit"\n', "x"), described(rows(), {"jobs": 3})
    assert lines(wanted, present) == [
        "~ topic jobs visibility=default -> 2m", "+ consumer jobs audit start=earliest",
    ]  # fmt: skip
    without_number = parse(WHOLE.replace("partitions = 3\n", ""), "x")
    assert lines(without_number, present) == ["~ topic jobs visibility=default -> 2m"], "as CREATE confirms it"


def test_a_partition_that_differs_stands_for_itself() -> None:
    """An export that is imported again changes nothing, and a consumer of one partition is created at no other."""
    found = described([*rows(2), row("jobs#2", "work", "odd", ttl=5000)], {"jobs": 3})
    assert found.topics["jobs#2"] == TopicDefinition({"ttl": "5000"}, {"odd": EARLIEST})
    again = parse(to_toml(found), "x")
    assert again == found
    assert plan(again, found) == []
    assert lines(again, Definitions()) == [
        "+ topic jobs partitions=3", "+ consumer jobs work start=earliest",
        "~ topic jobs#2 ttl=default -> 5s", "+ consumer jobs#2 odd start=earliest",
    ]  # fmt: skip
    whole = Definitions({"jobs": TopicDefinition({}, {"work": EARLIEST, "odd": LATEST}, 3)})
    assert lines(whole, found) == [
        "~ topic jobs#2 ttl=5s -> default", "+ consumer jobs#0 odd start=latest", "+ consumer jobs#1 odd start=latest",
    ], "the position of one that is there stays"  # fmt: skip


def test_a_process_changes_the_partitions_that_it_has() -> None:
    wanted = parse(WHOLE, "x")
    assert plan(wanted, described([], {"jobs": 3})) == []
    assert lines(wanted, described(rows(1), {"jobs": 3})) == ["~ topic jobs visibility=default -> 2m"]


@pytest.mark.parametrize(("counts", "says"), [
    ({"jobs": 2}, "it exists with partitions=2, and the number is fixed at creation: write 2, or take another name"),
    ({}, "it exists and is not partitioned: delete it first, or take another name"),
])  # fmt: skip
def test_another_number_is_refused_with_the_remedy(counts: dict[str, int], says: str) -> None:
    (change,) = plan(parse(WHOLE, "x"), described(rows(2) if counts else [row("jobs")], counts))
    assert isinstance(change, CreateTopic)
    assert change.refusal == says
    assert change_to_json(change)["refusal"] == says


def test_parts_without_their_whole_are_refused_with_the_remedy() -> None:
    """Found by a new user: a broker did not start with an exported file."""
    for name in ("jobs#0", "jobs#0.dlq"):
        (change,) = plan(Definitions({name: TopicDefinition({}, {})}), Definitions())
        assert isinstance(change, CreateTopic)
        assert change.refusal == (
            'it is a partition of jobs, which is not there: define the whole, name = "jobs" and partitions = N, before it'
        )


def test_the_dead_letters_of_a_partition_are_a_topic_behind_it() -> None:
    found = described([*rows(), row("jobs#0.dlq", ttl=5000)], {"jobs": 3})
    assert plan(found, found) == []
    assert lines(found, Definitions()) == [
        "+ topic jobs partitions=3", "+ consumer jobs work start=earliest", "+ topic jobs#0.dlq ttl=5s",
    ]  # fmt: skip
    (changed,) = plan(Definitions({"jobs#0.dlq": TopicDefinition({}, {})}), found)
    assert isinstance(changed, ChangeSettings)


@pytest.mark.parametrize(("text", "says"), [
    ('name = "jobs"\npartitions = 0', "partitions: invalid partitions '0': write a whole number from 1"),
    ('name = "jobs"\npartitions = 2.5', "partitions: neither text nor a number"),
    ('name = "jobs#1"\npartitions = 2', "partitions: jobs#1 is the name of a partition"),
    ('name = "jobs.dlq"\npartitions = 2', "partitions: jobs.dlq holds dead letters"),
    ('name = "jobs"\npartition = 2', "did you mean partitions"),
    ('name = "jobs"\npartitions = 2\n[[topic.consumer]]\nname = "c"\nstart = 7',
     "consumer c: start: 7 is an id of one partition: define jobs#0 for itself"),
])  # fmt: skip
def test_mistakes_name_file_topic_and_key(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match="x: topic jobs") as refused:
        parse(f"[[topic]]\n{text}\n", "x")
    assert says in str(refused.value)
