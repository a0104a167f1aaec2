"""The verdict of ``toymq demo``."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest

from toymq import RequestTimeout
from toymq_py.cli.demo import Ledger, demo, until


def test_what_it_publishes_by_default_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a trial: the demo published the README of the working directory, which only a checkout has."""
    monkeypatch.chdir(tmp_path)
    with demo.make_context("demo", []) as ctx:
        assert len(ctx.params["path"].read_bytes().splitlines()) > 20
        assert "[default: (a page of `toymq help`)]" in " ".join(demo.get_help(ctx).split())
    with pytest.raises(click.BadParameter, match="does not exist"):
        demo.make_context("demo", ["--file", "README.md"])


def test_the_verdict_names_each_broken_promise() -> None:
    def judged(**seen: object) -> list[str]:
        ledger = Ledger([b"a", b"b"], ids={0: 0, 1: 1}, seen={0: b"a", 1: b"b"})
        for name, value in seen.items():
            setattr(ledger, name, value)
        ledger.judge()
        return ledger.broken

    assert judged() == []
    assert judged(seen={0: b"a"}) == ["1 acknowledged lines were lost or changed, the first is line 2"]
    assert judged(seen={0: b"a", 1: b"B"}) == ["1 acknowledged lines were lost or changed, the first is line 2"]
    assert judged(ids={0: 0})[0] == "1 lines were never acknowledged"
    assert "two lines were given one id" in judged(ids={0: 0, 1: 0})
    assert judged(seen={0: b"a", 1: b"b", 2: b"c"}) == ["1 messages came that were never published"]
    assert judged(again={1}, settled={1}) == ["1 messages came back although their ack was on the disk"]
    assert judged(again={1}) == [], "within the kill window"
    assert judged(after=1) == ["1 acked messages were delivered after the last restart"]


def test_a_broker_that_is_slow_to_deliver_has_lost_nothing() -> None:
    """On a busy machine half a second passed between two messages, and the demo said that the rest was lost."""

    def next_message(timeout_s: float) -> Any:
        if timeout_s < 5:
            raise RequestTimeout("no message yet")
        return SimpleNamespace(id=next(ids))

    ids = iter(range(7, 100))
    came = until(cast(Any, SimpleNamespace(next=next_message)), last=9)
    assert [message.id for message in came] == [7, 8, 9], "and it waits no longer than for the last one"
