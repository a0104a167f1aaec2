"""Progress bars on stderr."""

import pytest

from toymq_bench import progress


class Bar:
    """The part of click's progress bar that a phase uses."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.pos = 0
        self.updates: list[int] = []

    def update(self, steps: int) -> None:
        self.pos += steps
        self.updates.append(self.pos)


def test_a_bar_is_drawn_rarely_and_never_beyond_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now)
    bar = Bar(100)
    shown = progress.Phase(bar)  # type: ignore[arg-type]
    for position in range(50):
        shown.at(position)
    assert bar.updates == [0], "50 updates in no time are one"
    now += progress.REDRAW_S
    shown.at(60.9)
    now += progress.REDRAW_S
    shown.at(1e9)
    assert bar.updates == [0, 60, 100]


def test_a_phase_ends_full_and_says_nothing_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.phase("copying", 0.2) as shown:
        shown.at(0.1)
    out, err = capsys.readouterr()
    assert (out, "copying" in err) == ("", True)
