"""docs/clusters.md and docs/more-machines.md tell the truth: each failure names tests that exist and are run."""

import re

import pytest

from tests.packaging.named_tests import check_cell
from tests.support.broker_process import ROOT


def rows(page: str) -> list[list[str]]:
    """Return the rows of a page's table."""
    sections = re.split(r"^## ", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE)
    (failures,) = [text for text in sections if text.startswith("What happens when\n")]
    lines = [line for line in failures.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


ROWS = rows("clusters.md")
OF_GROUPS = rows("more-machines.md")


def test_each_failure_says_what_becomes_of_messages_and_of_publishing() -> None:
    assert len(ROWS) >= 20, "those of the contract's table"
    assert len(OF_GROUPS) >= 6
    assert [row for row in ROWS + OF_GROUPS if len(row) != 4 or not all(row)] == []


@pytest.mark.parametrize("row", ROWS + OF_GROUPS, ids=lambda row: row[0])
def test_a_failure_names_tests_that_exist(row: list[str]) -> None:
    check_cell(row[3])
