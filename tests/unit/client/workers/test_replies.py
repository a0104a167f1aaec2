"""Messages of results; the rest of ``replies`` is in tests/e2e/workers/test_replies.py."""

import json

from toymq.workers.replies import failure_of, is_wanted, result_of


def test_a_result_is_json_and_one_that_cannot_be_is_a_failure() -> None:
    assert json.loads(result_of("add", [1])) == {"result": [1]}
    assert json.loads(result_of("add", object()))["error"] == "TypeError"
    assert json.loads(result_of("add", float("nan")))["error"] == "BadArgument"


def test_a_failure_has_type_and_text_of_any_exception() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert json.loads(failure_of(ValueError("no"))) == {"error": "ValueError", "text": "no"}
    assert json.loads(failure_of(Silent())) == {"error": "Silent", "text": ""}


def test_only_topics_of_results_are_answered() -> None:
    assert is_wanted({"toymq-reply-to": "replies.1.a", "toymq-call": "1"})
    for headers in ({}, {"toymq-reply-to": "orders", "toymq-call": "1"}, {"toymq-reply-to": "replies.1.a"}):
        assert not is_wanted(headers)
