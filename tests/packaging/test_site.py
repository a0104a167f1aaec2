"""The site's pages, as ``make site`` writes them: links are valid, and the navigation has each page."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.packaging.links import broken_links
from tests.packaging.site import for_the_site, write
from tests.support.broker_process import ROOT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "pages"
    write(folder)
    return folder


def test_links_lead_to_pages_of_the_site(folder: Path) -> None:
    found = sorted(folder.glob("**/*.md"))
    assert len(found) > 80
    assert [f"{page.relative_to(folder)}: {link}" for page in found for link in broken_links(page, page.read_text())] == []


def test_the_navigation_has_every_page(folder: Path) -> None:
    """The decisions are not in the navigation: their index links to them."""
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    listed = re.findall(r"'([\w/-]+\.md)'", str(nav))
    assert sorted(listed) == sorted([*(page.name for page in folder.glob("*.md")), "adr/index.md"])


def test_the_measurements_page_has_every_file_and_its_figures(folder: Path) -> None:
    page = (folder / "measurements.md").read_text()
    headings = re.findall(r"^## (.+)", page, re.MULTILINE)
    assert sorted(headings) == sorted(file.stem for file in (ROOT / "docs" / "measurements").glob("*.json"))
    assert page.count("publishes_per_s ") > 20


def test_a_link_to_a_source_file_becomes_text() -> None:
    text = "[a](../tests/a.py) [b](http.md#who-may) [c](../adr/README.md) [d](measurements) [e](https://e.org/)"
    assert for_the_site("docs/x.md", text) == "a [b](http.md#who-may) [c](adr/index.md) [d](measurements.md) [e](https://e.org/)"
    assert for_the_site("adr/0001.md", "[a](../docs/http.md) [b](README.md)") == "[a](../http.md) [b](index.md)"
