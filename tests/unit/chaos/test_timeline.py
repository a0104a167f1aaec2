"""The picture of a history: rates, repeats, kills, and when the broker was frozen."""

from pathlib import Path

import pytest

from tests.support.drawn import drawn_figures, late
from toymq_chaos.history import Event

draw = late("toymq_chaos.timeline", "draw")

S = 1_000_000_000


def test_what_happened_is_drawn_where_it_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toymq_chaos.timeline import BIN_S

    drawn = drawn_figures(monkeypatch)
    events = [
        Event(5 * S, "p.1", "connect"),
        *(Event(5 * S + n, "p.1", "pub", result="ok", topic="t", id=n) for n in range(8)),
        Event(5 * S, "p.1", "pub", result="unknown", topic="t"),
        *(Event(6 * S, "c.1", "deliver", topic="t", consumer="c", id=n, result="ok") for n in (0, 1, 1)),
        Event(7 * S, "nemesis", "kill", note="commit/after"),
        Event(8 * S, "nemesis", "pause"),
        Event(9 * S, "nemesis", "resume"),
    ]
    draw(iter(events), tmp_path / "t.png", "a run")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    rates, repeats = drawn[0].axes
    published, delivered = rates.lines[0], rates.lines[1]
    assert (published.get_xdata()[0], published.get_ydata()[0]) == (0.0, 8 / BIN_S), "what is not acknowledged does not count"
    assert delivered.get_ydata()[int(1 / BIN_S)] == 2 / BIN_S
    assert sum(bar.get_height() for bar in repeats.patches if bar.get_width() == BIN_S) == 1 / BIN_S
    assert rates.lines[2].get_xdata() == [2.0, 2.0]
    assert [text.get_text() for text in rates.texts] == ["commit"]
    names = {text.get_text() for text in rates.get_legend().get_texts()}
    assert names == {"published and acknowledged", "delivered first", "kill", "frozen"}


def test_an_empty_history_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw([], tmp_path / "t.svg", "nothing")
    assert b"<svg" in (tmp_path / "t.svg").read_bytes()
