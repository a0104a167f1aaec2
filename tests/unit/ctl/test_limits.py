"""How much of a broker's limits is used; each worker and each group has limits of its own."""

from typing import Any

import pytest

from toymq_py.placement import worker_of
from toymqctl.limits import number_of_topics, used

LIMITS = {"max_connections": 100, "max_topics": 20, "max_consumers": 10}
NAMES = [f"t{number}" for number in range(30)]
OF_WORKERS = [sum(worker_of(name, 2) == worker for name in NAMES) for worker in (0, 1)]
WORKERS = {"worker": 0, "workers": [["h:1"], ["h:2"]]}
GROUPS = {"group": "a", "groups": {"a": {}, "b": {}}, "topics": {name: "a" if name < "t2" else "b" for name in NAMES}}


def stats(*topics: str, **changes: Any) -> dict[str, Any]:
    return {"connections": 95, "connections_most": 60, "limits": LIMITS,
            "topics": [{"topic": name, "consumers": []} for name in topics], **changes}  # fmt: skip


@pytest.mark.parametrize(
    ("cluster", "begins", "most"),
    [
        (WORKERS, "at the worker with the most ", max(OF_WORKERS)),
        (GROUPS, "at the group with the most ", 18),
    ],
)
def test_each_worker_and_each_group_has_limits_of_its_own(cluster: dict[str, Any], begins: str, most: int) -> None:
    told, near = used(stats(*NAMES), cluster)
    assert told == f"{begins}60 of 100 connections, {most} of 20 topics, 0 of 10 consumers of a topic"
    assert near == (["--max-topics"] if most >= 18 else [])


def test_dead_letters_count_as_the_limit_counts_them() -> None:
    told = stats("a", "a.dlq", "gone.dlq")
    assert "2 of 20 topics" in used(told, {})[0]
    assert number_of_topics(told["topics"]) == "2 and 1 of dead letters", "`topics: 3` stood below `2 of 20 topics`"
    assert number_of_topics(stats("a")["topics"]) == "1"


def test_an_older_broker_tells_the_connections_of_all() -> None:
    told = stats()
    del told["connections_most"]
    assert used(told, {}) == ("95 of 100 connections, 0 of 20 topics, 0 of 10 consumers of a topic", ["--max-connections"])
