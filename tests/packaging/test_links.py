"""Every link of every page leads to an existing file and heading."""

from tests.packaging.links import anchors_of, broken_links, pages
from tests.support.broker_process import ROOT


def test_links_lead_somewhere() -> None:
    broken = [f"{page.relative_to(ROOT)}: {link}" for page in pages() for link in broken_links(page, page.read_text())]
    assert broken == []


def test_a_broken_link_is_found() -> None:
    page = ROOT / "docs" / "quickstart.md"
    text = "# A `b` page\n[x](#a-b-page) [x](gone.md) [x](#gone) [x](http.md#gone) [x](http.md#who-may) `[x](code.md)`\n"
    assert list(broken_links(page, text)) == ["gone.md", "#gone", "http.md#gone"]


def test_equal_headings_are_numbered_and_code_has_none() -> None:
    assert anchors_of("# A\n## A\n```sh\n# B\n```\n### C: d, e\n") == {"a", "a-1", "c-d-e"}
