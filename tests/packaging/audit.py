"""pip-audit's result, printed so that a missing answer does not look like a good one: ``python -m tests.packaging.audit FOUND
LOG``.

By itself pip-audit either ends with the first package that the index does not know, or skips all of them and reports no known
vulnerability. Exit code 0: every package was checked, and none is vulnerable. 1: some package is. 2: some package was not
checked."""

import json
import sys
from pathlib import Path
from typing import Any


def verdict(dependencies: list[dict[str, Any]]) -> tuple[list[str], int]:
    """Lines to print and the exit code, from the ``dependencies`` of pip-audit's JSON."""
    lines = [
        f"{found['name']} {found['version']}: {flaw['id']}, mended in {', '.join(flaw['fix_versions']) or 'no version yet'}"
        for found in dependencies
        for flaw in found.get("vulns", ())
    ]
    silent = [found["name"] for found in dependencies if "skip_reason" in found]
    answered = len(dependencies) - len(silent)
    if silent:
        lines.append(f"no answer for {', '.join(silent)}")
    known = len(lines) - bool(silent)
    lines.append(f"audit: {answered} of {len(dependencies)} packages answered for, {known or 'no'} vulnerabilities known")
    return lines, 1 if known else 2 if silent or not dependencies else 0


def main(found: Path, log: Path) -> int:
    try:
        dependencies = json.loads(found.read_text(encoding="utf-8"))["dependencies"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):  # it breaks off in the middle of writing, too
        said = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
        sys.stderr.write(f"audit: pip-audit ended without a result: {said[-1] if said else 'it said nothing'}\n")
        return 2
    lines, code = verdict(dependencies)
    (sys.stderr if code else sys.stdout).write("\n".join(lines) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
