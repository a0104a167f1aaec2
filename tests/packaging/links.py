"""The pages of the project and the links between them, as GitHub and the site read them."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.broker_process import ROOT

LINK = re.compile(r"(\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^()\s]+)\)")
_FENCE = re.compile(r"^(?:```|~~~).*?^(?:```|~~~)[ \t]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_REMOTE = re.compile(r"[a-z]+:")


def pages() -> list[Path]:
    """Return every page, by its path in the repository."""
    named = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    return [*named, *sorted((ROOT / "docs").glob("**/*.md")), *sorted((ROOT / "adr").glob("*.md"))]


def anchors_of(text: str) -> set[str]:
    """Return the anchors of a page's headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", _FENCE.sub("", text), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", LINK.sub(r"\1", heading).lower()).replace(" ", "-")
        number = 0
        anchor = slug
        while anchor in found:
            number += 1
            anchor = f"{slug}-{number}"
        found.add(anchor)
    return found


def broken_links(page: Path, text: str) -> Iterator[str]:
    """Yield the links of a page that lead to no file, or to no heading of it."""
    for match in LINK.finditer(_CODE.sub("", _FENCE.sub("", text))):
        target, _, anchor = match[2].partition("#")
        if _REMOTE.match(target):
            continue
        file = (page.parent / target) if target else page
        if not file.exists() or (anchor and anchor not in anchors_of(text if file == page else file.read_text())):
            yield match[2]
