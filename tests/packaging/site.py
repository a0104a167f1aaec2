"""The site's pages, written into a directory: docs/ at its root, the decisions, the measurements, the project's own pages.

``python -m tests.packaging.site DIRECTORY``, which ``make site`` does. A link to a file that the site does not have (a source
file) becomes text.
"""

import json
import posixpath
import re
import shutil
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.packaging.links import LINK, pages
from tests.support.broker_process import ROOT

MEASUREMENTS = "measurements.md"


def place_of(path: str) -> str:
    """Return where the site has a file of the repository; '' if it has not."""
    if path == "docs/measurements":
        return MEASUREMENTS
    if path.startswith("docs/"):
        return path[5:]
    if path in ("adr", "adr/README.md"):
        return "adr/index.md"
    if path in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        return path.lower() if path != "README.md" else "overview.md"
    return path if path.startswith("adr/") else ""


def for_the_site(path: str, text: str) -> str:
    """Return a page's text with links as on the site."""
    here = posixpath.dirname(place_of(path))

    def link(match: re.Match[str]) -> str:
        target, hash_, anchor = match[2].partition("#")
        if not target or ":" in target:
            return match[0]
        place = place_of(posixpath.normpath(posixpath.join(posixpath.dirname(path), target)))
        if not place:
            return match[1][1:-1]
        return f"{match[1]}({posixpath.relpath(place, here or '.')}{hash_}{anchor})"

    return LINK.sub(link, text)


def measurements() -> Iterator[str]:
    """Yield the lines of a page with a table for every file of docs/measurements."""
    yield "# Measurements\n\nMedians of the runs in `docs/measurements`, as `toymq-bench` wrote them.\n"
    for file in sorted((ROOT / "docs" / "measurements").glob("*.json"), reverse=True):
        held: dict[str, Any] = json.loads(file.read_text())
        yield f"\n## {file.stem}\n\n" + ", ".join(f"{name} {value}" for name, value in held["machine"].items()) + "\n"
        yield "\n| load | runs | measured |\n|---|---|---|\n"
        for result in held["results"]:
            parameters = (f"{name}={value}" for name, value in result["parameters"].items())
            load = " ".join([result["scenario"], *parameters, f"({result['durability']})"])
            shown = [f"{name} {value}" for name, value in medians(result["runs"])]
            yield f"| {load} | {len(result['runs'])} | {', '.join(shown)} |\n"


def medians(runs: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the median of each number over all runs: (name, median)."""
    for name in runs[0]:
        values = [run.get(name) for run in runs]
        numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
        if len(numbers) == len(values):
            middle = statistics.median(numbers)
            yield name, f"{middle:,.0f}" if abs(middle) >= 100 or middle == int(middle) else f"{middle:.3g}"


def write(folder: Path) -> None:
    """Write all pages and pictures; earlier contents are removed."""
    shutil.rmtree(folder, ignore_errors=True)
    for page in pages():
        path = page.relative_to(ROOT).as_posix()
        file = folder / place_of(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(for_the_site(path, page.read_text()))
    for picture in [*ROOT.glob("docs/**/*.png"), *ROOT.glob("docs/**/*.svg"), *ROOT.glob("docs/**/*.css")]:
        file = folder / picture.relative_to(ROOT / "docs")
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture, file)
    (folder / MEASUREMENTS).write_text("".join(measurements()))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
