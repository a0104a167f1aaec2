"""The note about a topic that a command creates."""

import pytest

from toymq_py.errors import Forbidden, NoSuchTopic, RequestError
from toymqctl.new_topics import is_new, say_made


def looked(error: RequestError | None) -> object:
    if error is not None:
        raise error
    return {}


@pytest.mark.parametrize(("topic", "error", "makes"), [
    ("misspelled", NoSuchTopic("x"), True),
    ("orders", None, False),
    ("orders", Forbidden("x"), None),
    ("orders.*", NoSuchTopic("x"), False),
    ("orders#9", NoSuchTopic("x"), False),
])  # fmt: skip
def test_only_a_topic_that_is_not_there_is_made(topic: str, error: RequestError | None, makes: bool | None) -> None:
    assert is_new(topic, lambda: looked(error)) is makes


def test_it_is_said_with_what_removes_it(capsys: pytest.CaptureFixture[str]) -> None:
    say_made("misspelled")
    assert capsys.readouterr() == (
        "", "toymqctl: misspelled was not there and is made now: `toymqctl delete misspelled` removes it\n",
    )  # fmt: skip
