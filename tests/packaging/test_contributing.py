"""The test files in the recipes of CONTRIBUTING.md exist."""

import re

from tests.support.broker_process import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def test_what_the_recipes_run_is_there() -> None:
    """``test_readme.py`` checks the files in backticks."""
    lines = re.findall(r"pytest -q ((?:.*\\\n)*.*)", PAGE)
    run = {word for line in lines for word in line.split() if word.startswith("tests/")}
    assert len(run) > 12
    assert {path for path in run if not (ROOT / path).exists()} == set()
