"""`make audit` and its output. Contract: issue 9, "Release hygiene"."""

import json
from pathlib import Path

import pytest

from tests.packaging.audit import main, verdict

GOOD = {"name": "click", "version": "8.1", "vulns": []}
BAD = {"name": "old", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]}
SILENT = {"name": "unknown", "skip_reason": "Dependency not found on PyPI"}


def test_all_is_well_only_when_every_package_was_answered_for() -> None:
    assert verdict([GOOD]) == (["audit: 1 of 1 packages answered for, no vulnerabilities known"], 0)
    lines, code = verdict([GOOD, SILENT])
    assert (lines[0], code) == ("no answer for unknown", 2)
    assert verdict([])[1] == 2


def test_what_is_known_is_named_with_what_mends_it() -> None:
    lines, code = verdict([BAD, SILENT])
    assert lines[0] == "old 1.0: PYSEC-1, mended in 1.1"
    assert lines[-1] == "audit: 1 of 2 packages answered for, 1 vulnerabilities known"
    assert code == 1


def test_an_audit_that_broke_off_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, log = tmp_path / "found.json", tmp_path / "log"
    log.write_text("trying\nConnectionError: no route\n")
    assert main(found, log) == 2
    assert capsys.readouterr().err == "audit: pip-audit ended without a result: ConnectionError: no route\n"
    for broken in ("", '{"dependencies": [{"na', "[]", "{}"):
        found.write_text(broken)
        assert main(found, log) == 2
        assert "ended without a result" in capsys.readouterr().err
    found.write_text(json.dumps({"dependencies": [GOOD]}))
    assert main(found, log) == 0
