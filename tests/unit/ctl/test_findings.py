"""A finding that is ok has no advice."""

from toymqctl.findings import Finding, noted


def test_advice_is_only_where_there_is_something_to_do() -> None:
    assert Finding("disk", "ok", "50.0GiB free").advice == ""


def test_a_note_stands_behind_the_findings_that_it_is_about() -> None:
    noticed = noted([Finding("disk", "ok", "fine"), Finding("lag", "warn", "late", "run")], {"lag"}, " (of some)")
    assert list(noticed) == [Finding("disk", "ok", "fine"), Finding("lag", "warn", "late (of some)", "run")]
