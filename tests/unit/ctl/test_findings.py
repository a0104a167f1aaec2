"""A finding without trouble has nothing to do."""

from toymqctl.findings import Finding


def test_advice_is_only_where_there_is_something_to_do() -> None:
    assert Finding("disk", "ok", "50.0GiB free").advice == ""
