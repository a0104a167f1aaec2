"""A command that waits for an answer prints so, once, and only when none comes."""

import pytest

from toymqctl import late_answers
from toymqctl.late_answers import LateAnswers, partitions_of


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


def test_an_answer_that_does_not_come_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    late = LateAnswers(lambda topic: f"waiting for {topic}")
    late.look()
    late.look()
    assert told(capsys) == "", "nothing is waited for"
    with late.waiting("t"):
        late.look()
        assert told(capsys) == "", "it has only begun"
        late.look()
        late.look()
        assert told(capsys) == "toymqctl: waiting for t\n"
    with late.waiting("u"):
        late.look()
        late.look()
    assert told(capsys) == ""
    with late.waiting("t", partitions_of):
        late.look()
        late.look()
    assert told(capsys).startswith("toymqctl: waiting to hear whether t is partitioned"), "something else"


def test_a_stream_whose_answers_come_is_not_late(capsys: pytest.CaptureFixture[str]) -> None:
    late = LateAnswers(str)
    for _ in late.each("t", range(3)):
        late.look()
    late.look()
    late.look()
    assert told(capsys) == ""


def test_a_thread_looks_until_the_command_ends(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_answers, "LOOK_S", 0.001)
    late = LateAnswers(str)
    with late, late.waiting("t"):
        while not late._said:
            late._thread.join(0.001)
            assert late._thread.is_alive()
    assert not late._thread.is_alive()
    assert told(capsys) == "toymqctl: t\n"
