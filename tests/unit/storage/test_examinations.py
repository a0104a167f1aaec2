"""Which segments are being examined for damage, and what waits for the result."""

import errno

from toymq_py.storage.examinations import WRONG_IDS_MAX, WRONG_READS_MAX, Examinations


def test_a_changed_segment_is_unjudged_until_an_examination_succeeds() -> None:
    examinations = Examinations()
    examinations.note_change(4)
    for error in (OSError(errno.EMFILE, "none left"), None):
        examinations.begin(4)
        assert (examinations.is_running(4), examinations.is_running(5)) == (True, False)
        examinations.end(4, error)
        assert not examinations.is_running(4)
        assert examinations.is_unjudged(4) is examinations.concern(4) is (error is not None)
    assert examinations.take_failure(4) is None, "it succeeded since"


def test_a_failure_is_said_once() -> None:
    examinations, error = Examinations(), OSError(errno.EMFILE, "none left")
    examinations.begin(4)
    examinations.end(4, error)
    assert examinations.take_failure(4) is error
    assert examinations.take_failure(4) is None


def test_what_waits_is_called_when_the_last_one_is_done() -> None:
    examinations = Examinations()
    told: list[str] = []
    examinations.when_done(lambda: told.append("at once"))
    for base_id in (0, 4):
        examinations.begin(base_id)
    examinations.when_done(lambda: told.append("then"))
    for call in examinations.end(0, None):
        call()
    assert told == ["at once"]
    for call in examinations.end(4, None):
        call()
    assert told == ["at once", "then"]


def test_a_record_that_is_wrong_again_and_again_is_given_up() -> None:
    examinations = Examinations()
    assert [examinations.is_wrong_again(7) for _ in range(WRONG_READS_MAX + 2)] == [False] * WRONG_READS_MAX + [True] * 2
    for msg_id in range(100, 100 + WRONG_IDS_MAX):
        examinations.is_wrong_again(msg_id)
    assert not examinations.is_wrong_again(7), "only so many are remembered"
