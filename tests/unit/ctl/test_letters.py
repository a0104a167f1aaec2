"""Dead letters grouped by their headers."""

import pytest

from toymqctl.letters import described, error_of, grouped, traceback_of, waiting
from toymqctl.lines import Row


def letter(msg_id: int, topic: str = "orders.dlq", **headers: str) -> Row:
    named = {f"toymq-{name.replace('_', '-')}": value for name, value in headers.items()}
    return Row(topic, msg_id, None, 1000 + msg_id, b"", named, b"payload")


def test_a_letter_tells_its_story() -> None:
    row = letter(3, origin_topic="orders", origin_id="17", consumer="billing", attempts="20", reason="attempts", redrives="2")
    found = described(row, settled=True)
    assert (found["origin_topic"], found["origin_id"], found["attempts"], found["redrives"]) == ("orders", 17, 20, 2)
    assert (found["key"], found["settled"], found["bytes"]) == (None, True, 7)


@pytest.mark.parametrize("text", ["", "-1", "1e3", "٣", "9" * 21])
def test_a_header_that_is_not_a_number_is_none(text: str) -> None:
    assert described(letter(1, attempts=text), settled=False)["attempts"] is None


def test_errors_have_type_and_text_as_far_as_they_are_known() -> None:
    assert error_of({"toymq-error-type": "ValueError", "toymq-error": "bad"}) == "ValueError: bad"
    assert error_of({"toymq-error": "bad"}) == "bad"
    assert error_of({}) is None


@pytest.mark.parametrize(
    ("text", "lines"), [('"a\\nb"', ["a", "b"]), ("not json", []), ("[1]", []), ("[" * 100_000, []), ("", [])], ids=range(5)
)
def test_a_traceback_is_read_leniently(text: str, lines: list[str]) -> None:
    assert traceback_of({"toymq-traceback": text}) == lines


def test_the_broker_says_how_many_wait() -> None:
    """Found: the number was computed from the redriven ranges in DESCRIBE, which has a thousand at most, and which include lost
    records."""
    described = {"topic": "t.dlq", "messages": 5000, "letters": 2990, "redriven": [[2 * n, 2 * n] for n in range(1000)]}
    assert waiting(described) == 2990
    assert waiting({"topic": "t.dlq", "messages": 7}) == 7, "a broker that does not count them"


def test_letters_that_failed_alike_are_counted_together() -> None:
    rows = [
        letter(1, consumer="a", reason="rejected", error_type="KeyError", error="'x'"),
        letter(2, consumer="b", reason="rejected", error_type="KeyError"),
        letter(4, consumer="a", reason="rejected", error_type="KeyError", error="'y'"),
    ]
    first, second = (alike.to_json() for alike in grouped((row, False) for row in rows))
    assert (first["count"], first["consumer"], first["first_id"], first["last_id"]) == (2, "a", 1, 4)
    assert first["last_error"] == "KeyError: 'y'"
    assert (second["count"], second["consumer"]) == (1, "b")


def test_letters_of_all_partitions_are_one_group_whose_ids_have_their_topic() -> None:
    """Found: six partitions with two kinds of errors were twelve rows."""
    rows = [
        letter(msg_id, f"orders#{number}.dlq", consumer="a", reason="attempts")
        for number, msg_id in ((0, 5), (0, 9), (1, 4), (1, 6))
    ]
    (found,) = grouped((row, False) for row in rows)
    assert ((found.oldest["topic"], found.oldest["id"]), (found.newest["topic"], found.newest["id"])) == (
        ("orders#1.dlq", 4), ("orders#0.dlq", 9),
    )  # fmt: skip
    told = found.to_json()
    assert (told["count"], told["topic"], told["first_id"], told["last_id"]) == (4, "orders.dlq", None, None)
    assert told["parts"] == [
        {"topic": "orders#0.dlq", "count": 2, "first_id": 5, "last_id": 9},
        {"topic": "orders#1.dlq", "count": 2, "first_id": 4, "last_id": 6},
    ]
