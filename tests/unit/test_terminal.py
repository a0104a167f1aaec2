"""Untrusted text on a terminal and in a pipe."""

import io
import sys

import pytest

from toymq_py import terminal
from toymqctl.lines import Row

HOSTILE = b"\x1b]0;PWN\x07\x1b[31m\x9b31m\r\x08\x00" + "\u202e\x9b\u2066\x7f".encode()
SHOWN = rb"\x1b]0;PWN\x07\x1b[31m\x9b31m\x0d\x08\x00\u202e\x9b\u2066\x7f"


class Output(io.TextIOWrapper):
    tty = False

    def isatty(self) -> bool:
        return self.tty


@pytest.mark.parametrize(("tty", "payload"), [(True, SHOWN), (False, HOSTILE)])
@pytest.mark.parametrize("form", ["text", "raw"])
def test_what_strangers_wrote_is_shown_on_a_terminal_and_as_it_is_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, form: str, tty: bool, payload: bytes
) -> None:
    written = io.BytesIO()
    output = Output(written)
    output.tty = tty
    monkeypatch.setattr(sys, "stdout", output)
    terminal.write(Row("t", 7, None, 0, b"", {}, HOSTILE).format(form))
    assert written.getvalue() == (b"7\t" if form == "text" else b"") + payload + b"\n"


def test_text_stays_text() -> None:
    text = "\u00fcn\u00efc\u00f6de \u6f22\u3000\U0001f600\ta\nb\u00a0c\\x1b".encode()
    assert terminal.shown(text) == text
