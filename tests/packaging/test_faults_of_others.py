"""docs/faults-of-others.md tells the truth: every test it names exists and is run."""

import re

import pytest

from tests.packaging.named_tests import check_cell
from tests.support.broker_process import ROOT

PAGE = (ROOT / "docs" / "faults-of-others.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if re.match(r"\| (?!broker)", line)]


def test_the_page_has_its_rows() -> None:
    assert len(ROWS) > 60, "the table is read as a table"
    assert [row for row in ROWS if len(row) != 3 or not all(row)] == []
    assert len({(broker, what) for broker, what, _ in ROWS}) == len(ROWS), "no failure is listed twice"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}: {row[1]}")
def test_a_row_names_tests_that_exist(row: list[str]) -> None:
    check_cell(row[2])
