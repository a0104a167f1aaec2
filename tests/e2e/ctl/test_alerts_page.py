"""docs/alerts.md tells the truth: its commands say what it says."""

import re
import shlex

from tests.support.broker_process import ROOT
from tests.support.ctl import Ctl, ok
from toymqctl.alerts import CONDITIONS

PAGE = (ROOT / "docs" / "alerts.md").read_text()
CHANGING = re.compile(r"\d{13}|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
"""Times."""


def test_the_transcript(web: Ctl) -> None:
    (block,) = re.findall(r"^```console\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    parts = [part.split("\n", 1) for part in block.split("$ ")[1:]]
    assert len(parts) > 5
    for command, expected in parts:
        program, *arguments = shlex.split(command)
        assert program == "toymqctl"
        done = web(*arguments)
        assert (done.exit_code, CHANGING.sub("…", done.stdout)) == (0, CHANGING.sub("…", expected)), command + done.stderr


def test_the_examples_are_taken(web: Ctl) -> None:
    (block,) = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    rules = [arguments[2:] for arguments in lines if arguments[2] == "set"]
    assert [rule[2] for rule in rules] == ["lag", "age", "retrying", "letters", "unattached", "disk"] == list(CONDITIONS)
    for rule in rules:
        changed = {"--url": "--to", "https://example.com/hook": "alerts"}  # a test has no name server
        taken = [changed.get(word, word) for word in rule]
        ok(web("alerts", *taken))
        ok(web("alerts", "delete", rule[1]))


def test_the_table_has_every_condition() -> None:
    assert tuple(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == CONDITIONS
