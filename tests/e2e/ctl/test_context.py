"""``toymqctl context``: named brokers, and what wins over them."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.broker_process import BrokerProcess
from tests.support.ctl import ok, refused
from toymqctl.cli import main as toymqctl

Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path) -> Call:
    """`toymqctl` with a file of contexts of its own."""

    def called(*arguments: str, stdin: str | None = None, **environment: str) -> Result:
        found = {"XDG_CONFIG_HOME": str(tmp_path), "TOYMQ_URL": None, "TOYMQ_TOKEN": None, **environment}
        return CliRunner().invoke(toymqctl, arguments, input=stdin, env=found)

    return called


def test_a_command_goes_to_the_context_in_use(call: Call, broker: BrokerProcess, tmp_path: Path) -> None:
    assert ok(call("context", "list")) == "no contexts: `toymqctl context add NAME --url URL` makes one\n"
    ok(call("context", "add", "here", "--url", f"127.0.0.1:{broker.port}"))
    ok(call("context", "add", "gone", "--url", "127.0.0.1:1"))
    assert ok(call("pub", "orders", "x")).startswith("OK "), "the first one is used"
    refused(call("--context", "gone", "ping"), 1, "no broker at 127.0.0.1:1")
    refused(call("ping", TOYMQ_CONTEXT="gone"), 1, "no broker at 127.0.0.1:1")
    refused(call("ping", TOYMQ_URL="127.0.0.1:1"), 1, "no broker at 127.0.0.1:1")
    refused(call("--url", "127.0.0.1:1", "ping"), 1, "no broker at 127.0.0.1:1")
    refused(call("--url", "127.0.0.1:1", "--context", "here", "ping"), 2, "--url and --context exclude each other")
    assert ok(call("context", "use", "gone")) == "using gone\n"
    refused(call("ping"), 1, "no broker at 127.0.0.1:1")
    assert ok(call("context", "remove", "gone")) == "removed gone\n"
    refused(call("context", "use", "gone"), 2, "no context 'gone': there are here")
    assert ok(call("context", "use", "-")) == "no context is used\n"
    assert stat.S_IMODE((tmp_path / "toymq" / "contexts.json").stat().st_mode) == 0o600


def test_the_token_is_kept_and_never_shown(call: Call, tmp_path: Path) -> None:
    ok(call("context", "add", "prod", "--url", "toymqs://mq.example.com", "--with-token", stdin="s3cret\n"))
    (tmp_path / "token").write_text("s3cret")
    ok(call("context", "add", "other", "--url", "toymq://b", "--token-file", str(tmp_path / "token")))
    shown = ok(call("context", "list"))
    assert shown.split()[:3] == ["in", "use", "context"]
    assert [line.split() for line in shown.splitlines()[1:]] == [
        ["other", "toymq://b", "in", str(tmp_path / "token"), "-"], ["*", "prod", "toymqs://mq.example.com", "(set)", "-"],
    ]  # fmt: skip
    assert "s3cret" not in shown + ok(call("context", "list", "--json"))
    assert "s3cret" in (tmp_path / "toymq" / "contexts.json").read_text()
    refused(call("context", "add", "x", "--url", "toymq://s3cret@b"), 2, "a token in --url shows in the process list")
    refused(call("context", "add", "x", "--url", "toymq://b", "--with-token", stdin=""), 2, "and there was none")
    refused(call("context", "add", "x y", "--url", "toymq://b"), 2, "invalid context 'x y'")
    assert "s3cret" not in call("context", "add", "x", "--url", "toymq://s3cret@b").output


def test_a_damaged_file_stops_what_needs_it_and_nothing_else(call: Call, broker: BrokerProcess, tmp_path: Path) -> None:
    (tmp_path / "toymq").mkdir()
    (tmp_path / "toymq" / "contexts.json").write_text("{")
    (tmp_path / "toymq" / "contexts.json").chmod(0o600)
    refused(call("ping"), 2, "contexts.json cannot be read")
    assert ok(call("--url", f"127.0.0.1:{broker.port}", "ping"))
    assert ok(call("completion", "bash"))
