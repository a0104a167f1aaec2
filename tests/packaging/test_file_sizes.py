"""No file is longer than the limit: a longer one has a second subject, which belongs in a file of its own."""

from tests.support.broker_process import ROOT

LINES_MAX = 500


def test_no_source_file_is_long() -> None:
    paths = [path for part in ("toymq_py", "clients", "chaos", "tests") for path in (ROOT / part).rglob("*.py")]
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in paths}
    assert len(lines) > 400, "the sources are somewhere else"
    assert {path: count for path, count in lines.items() if count > LINES_MAX} == {}
