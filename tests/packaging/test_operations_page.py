"""docs/operations.md, "A message came twice", tells the truth: the log shows why a message was redelivered."""

import re
from pathlib import Path

from tests.support.broker_process import ROOT, BrokerProcess

PAGE = (ROOT / "docs" / "operations.md").read_text().partition("## A message came twice")[2].partition("\n## ")[0]


def test_the_wire_log_shows_the_cause_of_each_redelivery(tmp_path: Path) -> None:
    (level,) = re.findall(r"`--log-level (\S+)`", PAGE)
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
    assert "topic: orders, consumer billing: the leases of 0 ended, and nothing had settled them" in parts[1]
    assert "< NACK orders billing 0 delay=0 reason=printer" in "".join(parts[2:])
    assert "wire: 1 x " in "".join(parts[3:]), "the end of the first session"
    assert "topic: orders, consumer billing: a session ended and had 0" in "".join(parts[3:])
    for shown in ("< NACK", "x the connection is gone", "and nothing had settled them", "a session ended and had"):
        assert shown in PAGE
