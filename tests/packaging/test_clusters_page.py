"""docs/clusters.md tells the truth: each failure names tests that exist and are run."""

import re

import pytest

from tests.packaging.named_tests import check_cell
from tests.support.broker_process import ROOT

SECTION = re.split(r"^## ", (ROOT / "docs" / "clusters.md").read_text(), flags=re.MULTILINE)
(FAILURES,) = [text for text in SECTION if text.startswith("What happens when\n")]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in FAILURES.splitlines() if line.startswith("| ")][1:]


def test_each_failure_says_what_becomes_of_messages_and_of_publishing() -> None:
    assert len(ROWS) >= 20, "those of the contract's table"
    assert [row for row in ROWS if len(row) != 4 or not all(row)] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_failure_names_tests_that_exist(row: list[str]) -> None:
    check_cell(row[3])
