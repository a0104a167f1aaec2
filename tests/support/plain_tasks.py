"""The functions that tasks of every framework call in tests/e2e/amqp: they report what they did, fail twice, or wait until the
test goes on."""

import os
import time
from pathlib import Path

from tests.support.framework_rig import SAID, lines_said, say

GO = "go"


def add(number: int) -> None:
    say(f"add {number}")


def flaky(number: int) -> None:
    """Fail at the first two attempts. Raises: OSError."""
    say(f"try {number}")
    if lines_said(Path(os.environ[SAID])).count(f"try {number}") < 3:
        raise OSError("not yet")
    say(f"flaky {number}")


def held(number: int) -> None:
    """Wait until the test has made the file ``go``."""
    say(f"begun {number}")
    while not (Path(os.environ[SAID]) / GO).exists():
        time.sleep(0.01)
    say(f"held {number}")
