"""Workers and groups that do not answer are named, with what to do, and are not called ok."""

from typing import Any

from toymqctl.absences import examine_away, stands_still, without
from toymqctl.findings import Finding

WORKERS = {"worker": 0, "workers": [["h:1"], ["h:2"]], "pids": [70, 71]}
AWAY = [{"place": "worker 1", "why": "does not answer within 2 s"}]


def test_a_worker_that_stands_still_is_named_with_its_process_and_what_ends_it() -> None:
    """Found: the advice was to look at the log, which had no line about it."""
    (finding,) = examine_away(AWAY, WORKERS)
    assert (finding.check, finding.state) == ("worker 1", "FAIL")
    assert finding.found == "does not answer within 2 s: its topics are away, and not checked"
    assert "`kill -9 71` on the broker's machine ends it: what had OK is kept, and it is started again" in finding.advice


def test_a_worker_without_a_process_is_being_started() -> None:
    assert stands_still({**WORKERS, "pids": [70, 0]}, 1).startswith("it has ended, and is started again")
    assert "`kill -9` ends a worker process" in stands_still({"workers": []}, 1), "an older broker names no process"


def test_a_group_that_has_its_line_gets_no_second_one() -> None:
    away = [{"place": "group b", "why": "has had no leader for 9 s"}]
    gone: dict[str, Any] = {"groups": {"b": {"leader": None}}}
    assert not list(examine_away(away, gone))
    (finding,) = examine_away(away, {"groups": {"b": {"leader": "b1:1"}}})
    assert finding.check == "figures of group b"


def test_what_was_not_looked_at_is_said_of_what_looks_at_all() -> None:
    """Found: the doctor printed `ok dead letters: none` while a worker that had some did not answer."""
    found = [Finding("dead letters", "ok", "none"), Finding("clock", "ok", "as ours"), Finding("lag", "warn", "w of t")]
    said = [one.found for one in without(found, AWAY)]
    assert said == ["none (without worker 1)", "as ours", "w of t (without worker 1)"]
    assert list(without(found, [])) == found
