"""``toymq worker``: which app it runs, and its error when there is none."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from toymq import App
from toymq_py.cli.main import main
from toymq_py.cli.worker import load
from toymq_py.errors import ConfigError, NoSuchTopic, ToymqError


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget modules that a test imports."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield
    for name in set(sys.modules) - before:
        if name.startswith("shop_"):
            del sys.modules[name]


def test_an_app_is_loaded_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "shop_jobs.py").write_text("import toymq\nmq = toymq.App()\n")
    assert isinstance(load("shop_jobs:mq"), App)


@pytest.mark.parametrize(
    ("target", "source", "text"),
    [
        ("shop_a", "", "shop_a names no app: write MODULE:APP, `toymq worker shop.jobs:app` say"),
        ("shop_b:app", "", "shop_b has no toymq.App that is called app; write `app = toymq.App()` there"),
        ("shop_c:app", "import toymq\nmq = toymq.App()", "shop_c has no toymq.App that is called app; there is shop_c:mq"),
        ("shop_no:app", None, "there is no module shop_no: start from the directory that it is in, "),
        ("../shop_h:app", None, "../shop_h is a path: start from the directory that the module is in, as `"),
        (".shop_h:app", None, ".shop_h is a path: "),
        ("shop/h.py:app", None, "shop/h.py is a path: "),
        ("shop_-h:app", "", "shop_-h has no toymq.App"),
        ("shop_d:app", "import nowhere_at_all", "shop_d cannot be imported: ModuleNotFoundError, see above"),
        ("shop_e:app", "1 +", "shop_e cannot be imported: SyntaxError, see above"),
    ],
)
def test_a_target_without_an_app_is_told_in_a_line(
    tmp_path: Path, target: str, source: str | None, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if source is not None:
        (tmp_path / f"{target.partition(':')[0]}.py").write_text(source)
    with pytest.raises(ConfigError) as refused:
        load(target)
    assert str(refused.value).startswith(text)
    said = capsys.readouterr().err
    assert ("site-packages" in said, "importlib" in said) == (False, False)
    assert ("see above" in text) == (said != "")


def test_without_an_application_one_line_says_what_is_missing() -> None:
    """Found: the output was the whole help, without the error."""
    result = CliRunner().invoke(main, ["worker"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "toymq: Missing argument 'MODULE:APP' (see `toymq worker --help`)\n"


def test_a_file_in_place_of_a_module_is_told() -> None:
    with pytest.raises(ConfigError, match=r"; write shop_no:app$"):
        load("shop_no.py:app")


def test_what_a_decorator_refuses_shows_the_line_of_the_application_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "import toymq\napp = toymq.App()\n@app.worker('t', dead_on='ValueError')\ndef work() -> None: ...\n"
    (tmp_path / "shop_g.py").write_text(source)
    with pytest.raises(ConfigError, match="shop_g cannot be imported: TypeError, see above"):
        load("shop_g:app")
    *place, error = capsys.readouterr().err.splitlines()
    assert (place[0].strip(), len([line for line in place if line.lstrip().startswith("File ")])) == (
        f'File "{tmp_path}/shop_g.py", line 3, in <module>', 1,
    )  # fmt: skip
    assert error.startswith("TypeError: dead_on is an exception's class or a tuple of them")


def test_an_argument_that_is_refused_is_one_line_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = "import toymq\napp = toymq.App()\n@app.worker('t', mode='single')\ndef work() -> None: ...\n"
    (tmp_path / "shop_i.py").write_text(source)
    with pytest.raises(ConfigError) as refused:
        load("shop_i:app")
    why = "invalid mode 'single': write shared or keyed; it is one of `sub`, SUB and `toymqctl sub` alone"
    assert str(refused.value) == f"{tmp_path}/shop_i.py, line 3: {why}"
    assert capsys.readouterr().err == ""


def test_the_exit_code_is_that_of_wrong_usage() -> None:
    result = CliRunner().invoke(main, ["worker", "shop"])
    assert result.exit_code == 2
    assert result.stderr == "toymq: shop names no app: write MODULE:APP, `toymq worker shop.jobs:app` say\n"


@pytest.mark.parametrize(
    ("error", "code"), [(NoSuchTopic("topic jobs was deleted"), 1), (ConfigError("no worker is registered"), 2)]
)
def test_workers_that_are_ended_by_an_error_say_it_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: ToymqError, code: int
) -> None:
    """Exit code 2 tells the parent of ``--processes`` that a new process would end the same way; a topic that is missing may be
    created, so that error has another code."""

    async def run(*_: object, **__: object) -> bool:
        raise error

    (tmp_path / "shop_f.py").write_text("import toymq\napp = toymq.App()\n")
    monkeypatch.setattr(App, "run", run)
    result = CliRunner().invoke(main, ["worker", "shop_f:app"])
    assert (result.exit_code, len(result.stderr.splitlines())) == (code, 1)
    assert str(error) in result.stderr
