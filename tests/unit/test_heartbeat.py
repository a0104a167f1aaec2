"""A worker that hangs is reported once, and once more when it goes on."""

from collections.abc import Callable

from toymq_py.heartbeat import BEAT_S, SILENT_LOOKS, Beats, Heartbeats


def test_one_that_stands_still_is_said_once_and_again_when_it_goes_on() -> None:
    beats = Beats()
    said = [beats.seen(count, 77) for count in (1, 3, *[3] * (SILENT_LOOKS + 3), 4, 6)]
    assert [at for at, line in enumerate(said) if line] == [1 + SILENT_LOOKS, 1 + SILENT_LOOKS + 4]
    still, again = filter(None, said)
    assert still.startswith("has not answered for 10 s")
    assert "`kill -9 77` ends it, and it starts again" in still
    assert still.endswith("; what is for its topics is refused"), "as the page says: nothing waits for it any more"
    assert again == "answers again"


def test_a_pause_of_the_whole_machine_is_one_look() -> None:
    beats = Beats()
    assert not any(beats.seen(count, 7) for count in (1, 3, 3, 5, 5, 7))


def test_one_that_does_not_serve_yet_or_is_another_process_is_not_said() -> None:
    beats = Beats()
    assert not any(beats.seen(0, 7) for _ in range(3 * SILENT_LOOKS)), "it recovers, which may take minutes"
    assert [bool(beats.seen(count, 7)) for count in [9] * (SILENT_LOOKS + 1)][-1]
    assert not any(beats.seen(count, 8) for count in (0, 1, 3)), "the next process has nothing to say again"


def look(beats: Beats, shared: Heartbeats) -> bool:
    """Look at the first of two workers, as the supervisor does. Returns: whether the second one considers it to hang."""
    beats.seen(shared.count(0), 7)
    shared.found_silent(0, beats.silent_at)
    return shared.stands_still(0)


def test_the_others_take_it_for_one_that_stands_still_until_it_beats_again_or_has_another_process() -> None:
    """Found: the other workers waited 20 s for it, each time anew, and later commands of their clients, too."""
    shared, beats = Heartbeats(2), Beats()
    assert not any(look(beats, shared) for _ in range(3 * SILENT_LOOKS)), "it does not serve yet"
    shared.keep_beating(0, lambda delay_s, call: None)
    assert [look(beats, shared) for _ in range(SILENT_LOOKS + 2)] == [False] * SILENT_LOOKS + [True] * 2
    shared.keep_beating(0, lambda delay_s, call: None)
    assert not shared.stands_still(0), "it goes on: no look of the supervisor is waited for"
    assert [look(beats, shared) for _ in range(SILENT_LOOKS + 1)] == [False] * SILENT_LOOKS + [True]
    shared.begins(0)
    assert not shared.stands_still(0)
    assert not look(beats, shared)
    assert not shared.stands_still(1)


def test_it_counts_each_second_as_long_as_the_loop_runs() -> None:
    beats, due = Heartbeats(2), list[tuple[float, Callable[[], None]]]()
    beats.keep_beating(1, lambda delay_s, call: due.append((delay_s, call)))
    for number in (1, 2, 3):
        assert (beats.count(0), beats.count(1)) == (0, number)
        ((delay_s, call),) = due
        assert delay_s == BEAT_S
        due.clear()
        call()
