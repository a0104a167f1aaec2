"""The start of a command line: no traceback for Ctrl-C, nor for an extra that is not installed."""

import sys
from types import ModuleType

import pytest

from toymq_py.command_line import EXTRAS, INTERRUPTED, USAGE, missing, run


def command(monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> None:
    def main() -> None:
        if error is not None:
            raise error

    module = ModuleType("a_command")
    module.main = main  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_command", module)


def test_a_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    command(monkeypatch, None)
    run("toymq", "a_command")


def test_an_interrupt_is_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    command(monkeypatch, KeyboardInterrupt())
    with pytest.raises(SystemExit) as exit_:
        run("toymq", "a_command")
    assert exit_.value.code == INTERRUPTED


@pytest.mark.parametrize("package", EXTRAS)
def test_a_missing_extra_is_named(package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Lacking:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "another_command":
                raise ModuleNotFoundError(name=f"{package}.part")

    monkeypatch.setattr(sys, "meta_path", [Lacking, *sys.meta_path])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    with pytest.raises(SystemExit) as exit_:
        run("toymqctl", "another_command")
    assert exit_.value.code == USAGE
    assert capsys.readouterr().err == f"toymqctl needs {package}: in a checkout of toymq, pip install '.[{EXTRAS[package]}]'\n"


def test_all_that_an_extra_lacks_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: the error named only rich, and only textual once rich was installed."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    line = missing(ModuleNotFoundError(name="textual.app"))
    assert line == "needs rich and textual: in a checkout of toymq, pip install '.[tui]'"


def test_any_other_module_that_is_missing_is_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError):
        run("toymq", "toymq_py.not_there")
