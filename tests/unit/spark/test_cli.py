"""``toymq-pipeline``: refusals before Spark starts, and errors of Spark in one line."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.errors import StreamingQueryException

from tests.support.broker_process import TIMEOUT_S, environment
from toymq_spark import cli
from toymq_spark.cli import explain
from toymq_spark.manifest import Archive, Manifest
from toymq_spark.metrics import Progress

SPARK_SAYS = """[STREAM_FAILED] Query [id = 1] terminated with exception: Job aborted
Traceback (most recent call last):
  File "worker.py", line 1, in main
toymq_spark.errors.DataLoss: topic t: records 3 to 4 are gone: retention removed the records below 5
 SQLSTATE: XXKST
"""


@pytest.fixture(autouse=True)
def _spark_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(app: str, master: str | None, settings: dict[str, str]) -> None:
        raise AssertionError(f"{app} has started Spark")

    monkeypatch.setattr("toymq_spark.session.build_session", started)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """Return an archive of which every batch was empty."""
    Archive(tmp_path / "empty").commit(Manifest("0000000000", "q", ()))
    return tmp_path / "empty"


def command(*words: str) -> Result:
    return CliRunner(env={"TOYMQ_URL": "toymq://elsewhere"}).invoke(cli.main, [*words])


def test_an_archive_that_ends_says_what_it_has_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def followed(query: None) -> Iterator[tuple[Progress, int]]:
        yield Progress("q", 0, 4, 9.0, 1, {"t": 3}), 4
        yield Progress("q", 1, 3, 0.0, 1, {"t": 0}), 7

    monkeypatch.setattr(cli, "_session", lambda master, app: nullcontext())
    monkeypatch.setattr("toymq_spark.jobs.archive.start", lambda *given, **more: None)
    monkeypatch.setattr("toymq_spark.metrics.followed", followed)
    words = ("archive", "--subscribe", "t", "--to", str(tmp_path / "a"))
    done = command(*words, "--once")
    assert (done.stderr, done.stdout) == ("4 rows archived, 9/s, 3 behind\n", f"archived 7 rows to {tmp_path}/a\n")
    assert command(*words).stderr.splitlines()[1] == "7 rows archived, 0/s, 0 behind"


def wrong_usage(done: Result, name: str, said: str) -> None:
    """Check that a command was refused in one line."""
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"toymq-pipeline: {said} (see `toymq-pipeline {name}--help`)\n"


@pytest.mark.parametrize(
    ("words", "name", "said"),
    [
        ("", "", ""),
        ("archiv", "", "No such command 'archiv': did you mean `toymq-pipeline archive`?"),
        ("--mastr x archive", "", "No such option '--mastr'. Did you mean '--master'?"),
        ("report --subscribe", "", "Option '--subscribe' requires an argument"),
        ("report --colour red", "report ", "No such option '--colour'. Did you mean '--url'?"),
        ("archive --subscribe t", "archive ", "Missing option '--to'"),
        ("report --subscribe t --master x", "report ", "--master goes before the command: `toymq-pipeline --master … report`"),
    ],
)
def test_wrong_usage_is_one_line(words: str, name: str, said: str) -> None:
    """Found: the error was two lines and a block, where all other command lines print one line."""
    done = command(*words.split())
    if said:
        wrong_usage(done, name, said)
    else:
        assert (done.exit_code, done.stderr.startswith("Usage: toymq-pipeline ")) == (2, True), "the help was asked for"


@pytest.mark.parametrize(
    "words",
    [("replay", "--to", "t", "--state", "{}/state", "--archive", "{}"), ("report", "--archive", "{}"), ("compact", "{}")],
)
def test_a_directory_without_a_manifest_is_no_archive(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "manifest").mkdir()
    done = command(*(word.format(tmp_path) for word in words))
    wrong_usage(done, f"{words[0]} ", f"{tmp_path} is not an archive: it has no manifest")
    assert [one.name for one in tmp_path.iterdir()] == ["manifest"], "nothing is left there either"


@pytest.mark.parametrize("option", ["--url", "--token-file", "--tls-ca", "--tls-cert", "--tls-key"])
def test_a_report_of_an_archive_asks_no_broker(option: str, empty: Path) -> None:
    done = command("report", "--archive", str(empty), option, "toymq://127.0.0.1")
    wrong_usage(done, "report ", f"--archive excludes {option}")
    assert "has started Spark" in str(command("report", "--archive", str(empty)).exception), "TOYMQ_URL is no option"


@pytest.mark.parametrize("option", ["--url", "--token-file", "--tls-ca", "--tls-cert", "--tls-key"])
@pytest.mark.parametrize("place", ["--archive", "--data-dir"])
def test_a_replay_to_another_broker_asks_none_but_that(place: str, option: str, empty: Path, tmp_path: Path) -> None:
    words = ("replay", place, str(empty), "--to", "t", "--state", str(tmp_path / "s"), "--to-url", "toymq://127.0.0.1:1")
    done = command(*words, option, "toymq://127.0.0.1")
    wrong_usage(done, "replay ", f"{place} with --to-url excludes {option}")
    assert "has started Spark" in str(command(*words).exception)


@pytest.mark.parametrize(
    ("kind", "exit_code", "more"),
    [("toymq_spark.errors.OptionError", 2, " (see `toymq-pipeline report --help`)"),
     ("toymq_py.errors.ConfigError", 2, " (see `toymq-pipeline report --help`)"),
     ("toymq_spark.errors.DataLoss", 1, "")],
)  # fmt: skip
def test_what_was_raised_within_spark(kind: str, exit_code: int, more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(app: str, master: str | None, settings: dict[str, str]) -> None:
        raise StreamingQueryException(f"[STREAM_FAILED] Job aborted\nTraceback\n{kind}: option x: no: more\n SQLSTATE: XXKST")

    monkeypatch.setattr("toymq_spark.session.build_session", failed)
    done = command("report", "--subscribe", "t")
    assert (done.exit_code, done.stderr) == (exit_code, f"toymq-pipeline: option x: no: more{more}\n")


def test_what_java_says_is_a_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every failure in Java is raised as an error of pyspark."""
    from_java = type("Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"})

    def failed(app: str, master: str | None, settings: dict[str, str]) -> None:
        raise from_java("An error occurred while calling o1.collect.\n: java.lang.Exception: no more\n\tat x.Y(Z.scala)")

    monkeypatch.setattr("toymq_spark.session.build_session", failed)
    done = command("report", "--subscribe", "t")
    assert (done.exit_code, done.stderr) == (1, "toymq-pipeline: java.lang.Exception: no more\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("report --subscribe t --option includeHeaders=false", "option includeHeaders: report sets it; leave it out"),
        ("report --subscribe t --option FAILONDATALOSS=true", "option failOnDataLoss: report sets it; leave it out"),
        ("watch --subscribe t --option failOnDataLoss=true", "option failOnDataLoss: watch sets it; leave it out"),
        ("watch --data-dir {} --pattern t --stuck-after 5s", "--data-dir excludes --stuck-after: a directory has no consumers"),
        ("report --subscribe t --window abc", "invalid window 'abc': write 30 seconds, 1 minute, 1 hour or 7 days"),
    ],
)
def test_options_that_would_do_nothing_are_refused(words: str, said: str, tmp_path: Path) -> None:
    wrong_usage(command(*words.format(tmp_path).split()), words.split()[0] + " ", said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("archive", "--to", "{}", "--option", "includeHeaders=false"), "--option includeHeaders: headers are always kept"),
        (("archive", "--to", "{}", "--option", "queryname=x"), "--option queryname: archive names the query"),
        (("archive", "--to", "{}", "--option", "checkpointLocation=x"), "--option checkpointLocation: use --checkpoint"),
        (("replay", "--option", "INCLUDEHEADERS=true"), "--option INCLUDEHEADERS: headers are always kept"),
        (("replay", "--option", "subscribe=b"), "--option subscribe: is given twice"),
        (("replay", "--option", "minPartitions=1", "--option", "minpartitions=2"), "--option minpartitions: is given twice"),
        (("replay", "--to-option", "topic=b"), "--to-option topic: use --to"),
        (("replay", "--to-option", "producerId=x"), "--to-option producerId: replay names its producers"),
        (("replay", "--to-option", "url=toymq://b"), "--to-option url: is given twice"),
        (("replay", "--to-option", "x"), "--to-option x: write NAME=VALUE"),
    ],
)
def test_an_option_that_a_job_sets_itself_is_refused_by_name(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """Found: some such options were silently ignored, one was a traceback, and one made the job write to another topic than it
    said."""
    more = ("--to", "t", "--state", str(tmp_path)) if words[0] == "replay" else ()
    done = command(*(word.format(tmp_path) for word in words), "--subscribe", "a", *more)
    wrong_usage(done, f"{words[0]} ", said)


def test_a_replay_of_nothing_is_json_too(empty: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_session", lambda master, name: nullcontext())
    done = command("replay", "--archive", str(empty), "--to", "t", "--state", str(tmp_path / "s"), "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"piece": 0, "pieces": 0, "rows": 0, "total": 0})


def test_of_what_spark_says_our_own_error_is_told() -> None:
    text = "topic t: records 3 to 4 are gone: retention removed the records below 5"
    assert explain(SPARK_SAYS) == ("toymq_spark.errors.DataLoss", text)
    assert explain("\nPATH_NOT_FOUND\nmore") == (None, "PATH_NOT_FOUND")
    java = "An error occurred while calling o69.start.\n: java.io.IOException: file is there\n\tat a.B.c(B.java:1)\n"
    assert explain(java) == (None, "java.io.IOException: file is there")
    full = java.replace("file is there", "No space left on device")
    assert explain(full)[1].startswith("a disk is full: that of the archive, of the checkpoint")
    assert explain("x\nPython worker failed to connect back.")[1].startswith("the machine is too busy")
    assert explain("") == (None, "Spark failed without a message")


@pytest.mark.parametrize(
    ("absent", "words", "extra"),
    [("pyspark", ["verify", "x"], "spark"), ("matplotlib", ["report", "--subscribe", "t", "--html", "x.html"], "plots")],
)
def test_what_is_not_installed_is_said_in_a_line_before_the_work(absent: str, words: list[str], extra: str) -> None:
    program = f"import sys; sys.modules['{absent}'] = None; from toymq_spark.cli import main; main(prog_name='toymq-pipeline')"
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    hint = f"in a checkout of toymq, pip install '.[{extra}]'"
    assert done.stderr == f"toymq-pipeline: this command needs {absent}: {hint} (see `toymq-pipeline {words[0]} --help`)\n"
