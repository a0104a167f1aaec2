"""The join at the grain of files: a fuzzy copy and what follows make equal directories; each rule that is left out is found."""

import pytest

from tests.model.bounds import FINDS_FILE_RULE, LONG, SHORT, JoinBounds
from tests.model.explore import exhaust
from tests.model.join import BEFORE, CREATE, RENAME, REPLACE, TRUNCATE, UNLINK, WRITE, Join, applied
from tests.model.rules import FILE_RULES


def searched(bounds: JoinBounds) -> int:
    outcome = exhaust(Join(bounds.operations, bounds.breaks))
    assert outcome.violation is None, "\n".join([outcome.violation or "", *outcome.trace])
    assert outcome.complete
    return outcome.states


@pytest.mark.parametrize("bounds", [bounds for bounds in SHORT if isinstance(bounds, JoinBounds)], ids=str)
def test_a_follower_that_joined_has_the_same_files(bounds: JoinBounds) -> None:
    assert searched(bounds) > 10_000


@pytest.mark.torture
@pytest.mark.parametrize("bounds", [bounds for bounds in LONG if isinstance(bounds, JoinBounds)], ids=str)
def test_a_follower_that_joined_has_the_same_files_within_wider_bounds(bounds: JoinBounds) -> None:
    assert searched(bounds) > 100_000


@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=pytest.mark.torture) if rule == "old_spool" else rule for rule in FILE_RULES]
)
def test_a_rule_left_out_is_found(rule: str) -> None:
    bounds = FINDS_FILE_RULE[rule]
    outcome = exhaust(Join(bounds.operations, bounds.breaks, rule), limit=150_000)
    assert outcome.violation is not None, f"without {rule} nothing was found in {outcome.states} states"


def test_each_rule_has_a_form_that_finds_it() -> None:
    assert FINDS_FILE_RULE.keys() == FILE_RULES.keys()


def test_operations_are_idempotent() -> None:
    """Each operation done twice is the same as once. A sequence is not, when a name is used again: so a rename is sent as
    content."""
    for operation in [
        (WRITE, 0, 2, (7,)), (TRUNCATE, 0, 1, ()), (CREATE, 0, 0, ()), (REPLACE, 0, 0, (7,)), (UNLINK, 0, 0, ()),
        (RENAME, 0, 1, ()),
    ]:  # fmt: skip
        once = applied(BEFORE, operation)
        assert applied(once, operation) == once
        assert once != BEFORE or operation[0] == CREATE


def test_a_write_behind_the_end_leaves_a_hole() -> None:
    assert applied(((), None), (WRITE, 0, 1, (7,))) == ((-1, 7), None)
    assert applied((None, None), (WRITE, 0, 1, (7,))) == (None, None), "what it belongs to was taken away by a later operation"


def test_a_trace_says_what_happened_to_which_file() -> None:
    outcome = exhaust(Join(1, 0, "rename_by_name"))
    assert "the leader does rename p to q" in outcome.trace
    assert "the leader has no more of p" in outcome.trace
    assert outcome.trace[0] == "the follower begins with a suffix of its own"
