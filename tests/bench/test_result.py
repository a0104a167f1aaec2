"""Results and their file."""

import json
from pathlib import Path

import pytest

from tests.support.bench_results import FACTS, pub
from toymq_bench.errors import BenchError
from toymq_bench.result import Result, Session


def test_a_session_comes_back_from_its_file(tmp_path: Path) -> None:
    session = Session(FACTS, [pub(1.0, 2.0), Result("idle", {}, "fsync never", [{"rss_mb": 12.5}])])
    session.save(tmp_path / "a.json")
    assert Session.load(tmp_path / "a.json") == session


NOT_OURS = ["{", "[]", "{}", json.dumps({"format": 2}), json.dumps({"format": 1, "machine": {}, "results": [{}]})]


@pytest.mark.parametrize("text", NOT_OURS)
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(BenchError, match=r"a\.json"):
        Session.load(tmp_path / "a.json")
