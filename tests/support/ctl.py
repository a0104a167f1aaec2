"""What `toymqctl` answered."""

import json
from collections.abc import Callable

from click.testing import Result

Ctl = Callable[..., Result]


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout



def rows(result: Result) -> list[list[str]]:
    return [line.split() for line in ok(result).splitlines()]



def values(result: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in ok(result).splitlines()]



def refused(result: Result, code: int, text: str) -> None:
    """One line on stderr that says it, and nothing on stdout."""
    assert result.exit_code == code, result.output
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("toymqctl: ")
    assert text in result.stderr
    assert result.stdout == ""

