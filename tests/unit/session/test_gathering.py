"""One reply made of the replies of all workers."""

import json
from operator import itemgetter

import pytest

from toymq_py.merging import merged_stats
from toymq_py.session.gathering import NOT_HERE, Gathering


def gathered(*replies: bytes) -> Gathering:
    gathering = Gathering(len(replies))
    last = [gathering.add(worker, reply) for worker, reply in enumerate(replies)]
    assert last == [False] * (len(replies) - 1) + [True]
    return gathering


def document(value: object) -> bytes:
    body = json.dumps(value).encode()
    return b"JSON %d\n%b\n" % (len(body), body)


def test_numbers_are_added_up() -> None:
    assert gathered(b"OK 2\n", b"OK 0\n", b"OK 5\n").total() == b"OK 7\n"


@pytest.mark.parametrize("kind", ["total", "topics", "stats"])
def test_one_refusal_is_the_reply(kind: str) -> None:
    gathering = gathered(b"OK 2\n", b"ERR MODE_CONFLICT it is exclusive\n", b"ERR BAD_NAME x\n")
    assert getattr(gathering, kind)() == b"ERR MODE_CONFLICT it is exclusive\n"


def test_topics_are_in_the_order_of_their_names() -> None:
    lists = [{"topic": "b", "text": "line\nbreak"}], [], [{"topic": "a"}, {"topic": "c"}]
    reply = gathered(*map(document, lists)).topics()
    assert reply == document([{"topic": "a"}, {"topic": "b", "text": "line\nbreak"}, {"topic": "c"}])


def test_thousands_of_topics_take_several_turns() -> None:
    lists = [[{"topic": f"{number:04}{worker}"} for number in range(500)] for worker in "ab"]
    gathering = gathered(*map(document, lists))
    turns = 1
    while (reply := gathering.topics()) is None:
        turns += 1
    assert reply == document(sorted(lists[0] + lists[1], key=itemgetter("topic")))
    assert turns > 10


def test_figures_are_those_of_all() -> None:
    here = {"version": "1", "publish_total": 2, "uptime_s": 9.5, "disk_free_bytes": 10, "disk_low": False, "limits": {"x": 1}}
    there = {**here, "publish_total": 3, "uptime_s": 1.0, "disk_free_bytes": 9, "disk_low": True}
    merged = {**here, "publish_total": 5, "uptime_s": 9.5, "disk_free_bytes": 9, "disk_low": True}
    assert merged_stats([here, there]) == merged
    reply = gathered(document({**here, "topics": [{"topic": "b"}]}), document({**there, "topics": [{"topic": "a"}]})).stats()
    assert reply == document({**merged, "topics": [{"topic": "a"}, {"topic": "b"}]})


def test_what_is_no_number_is_of_the_group_that_answers() -> None:
    gathering = Gathering(2, "b")
    for place in ("a", "b"):
        gathering.add(place, document({"gateways": [f"http://{place}"], "publish_total": 1, "topics": []}))
    assert gathering.stats() == document({"gateways": ["http://b"], "publish_total": 2, "topics": []})


def test_what_one_worker_lacks_the_others_may_have() -> None:
    lacks = b"ERR NO_SUCH_CONSUMER c\n"
    assert gathered(b"OK 2\n", lacks, b"OK 5\n").sum_of_some() == b"OK 7\n"
    assert gathered(lacks, b"ERR NO_SUCH_TOPIC t\n").sum_of_some() == lacks
    assert gathered(lacks, b"OK 1\n", b"ERR STORAGE_FAILED x\n").sum_of_some() == b"ERR STORAGE_FAILED x\n"
    moved = b"ERR MOVED a:1 (worker 0) has the topic t\n"
    assert gathered(moved, b"OK 2\n").sum_of_some() == moved
    assert gathered(moved, b"OK 2\n").sum_of_some(NOT_HERE) == b"OK 2\n"


HALF_MADE = b"ERR PLACEMENT_UNKNOWN t has its partitions at some workers or groups and not at others"


@pytest.mark.parametrize("lacks", [b"ERR MOVED a:1 (worker 0) has the topic t\n", b"ERR NO_SUCH_TOPIC there is no topic t\n"])
def test_a_partitioned_topic_that_some_lack_is_half_made(lacks: bytes) -> None:
    assert (gathered(lacks, b"OK 2\n").of_whole(Gathering.total, "t") or b"").startswith(HALF_MADE)
    assert gathered(lacks, lacks).of_whole(Gathering.total, "t") == lacks
    assert gathered(b"OK 1\n", b"OK 2\n").of_whole(Gathering.total, "t") == b"OK 3\n"


def test_partitions_without_dead_letters_are_not_half_made() -> None:
    lacks = b"ERR NO_SUCH_TOPIC there is no topic t#0.dlq\n"
    assert gathered(lacks, b"OK 2\n").of_whole(Gathering.sum_of_some, "t.dlq") == b"OK 2\n"


def test_settings_and_partitions_of_all_workers() -> None:
    assert gathered(document({"ttl": 1, "partitions": 3}), document(None)).settings() == document({"ttl": 1, "partitions": 3})
    summed = ("messages", "bytes", "segments", "expired_total", "dead_lettered_total", "dropped_total", "lost")
    part = dict.fromkeys(summed, 1)
    rest = {"state": "ok", "settings": {}, "consumers": []}
    wholes = [
        {"topic": "t", "partitions": 3, "parts": [{"topic": f"t#{number}", **part, **rest} for number in numbers]}
        for numbers in ([1], [], [0, 2])
    ]
    found = json.loads(gathered(*map(document, wholes)).described().partition(b"\n")[2])
    assert [one["topic"] for one in found["parts"]] == ["t#0", "t#1", "t#2"]
    assert (found["topic"], found["partitions"], found["messages"]) == ("t", 3, 3)
