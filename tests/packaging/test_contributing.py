"""CONTRIBUTING.md tells the truth: the log shows why a message was redelivered, and the tests of its recipes are there."""

import re
from pathlib import Path

from tests.support.broker_process import ROOT, BrokerProcess

PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def test_the_wire_log_shows_the_cause_of_each_redelivery(tmp_path: Path) -> None:
    (level,) = re.findall(r"`--log-level (info,wire=debug)`", PAGE)
    with BrokerProcess(tmp_path / "d", "--log-level", level, "--visibility", "200ms") as broker:
        with broker.connect() as wire:
            assert wire.ask(b"PUB orders - 5\nhello\n") == b"OK 0"
            assert wire.ask(b"SUB orders billing\n") == b"OK 1"
            for attempt in (1, 2):
                assert wire.line().startswith(b"MSG orders 0 %d " % attempt)
                assert wire.line() == b"hello"
            wire.send(b"NACK orders billing 0 delay=0 reason=printer\n")
            while not (line := wire.line()).startswith(b"MSG orders 0 3"):
                assert not line.startswith(b"ERR"), line
        with broker.connect() as wire:
            wire.send(b"SUB orders billing\n")
            while not (line := wire.line()).startswith(b"MSG orders 0 "):
                assert not line.startswith(b"ERR"), line
        broker.stop()
        code, log = broker.ended()
    assert code == 0
    parts = re.split(r"> MSG orders 0 \d ", log)
    assert len(parts) >= 5, log
    assert not re.search(r"wire: 1 [<x]", parts[1]), "nothing before the first redelivery but time"
    assert "< NACK orders billing 0 delay=0 reason=printer" in "".join(parts[2:])
    assert "wire: 1 x " in "".join(parts[3:]), "the end of the first session"
    for shown in ("< NACK", "x the connection is gone", "MSG <topic> <id> <attempt>"):
        assert shown in PAGE


def test_what_the_recipes_run_is_there() -> None:
    """``test_readme.py`` looks for the files in backticks."""
    lines = re.findall(r"pytest -q ((?:.*\\\n)*.*)", PAGE)
    run = {word for line in lines for word in line.split() if word.startswith("tests/")}
    assert len(run) > 12
    assert {path for path in run if not (ROOT / path).exists()} == set()
