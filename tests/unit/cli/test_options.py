"""Command line over environment over file over default. Contract: clients.md, "Command lines"."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.support.certificates import CERT, CLIENT_KEY, KEY
from toymq_py.cli.main import main
from toymq_py.cli.options import OPTIONS
from toymq_py.config.option_schema import Several, Text, options_of, parse_address
from toymq_py.config.options import BrokerOptions, ServeOptions
from toymq_py.errors import ConfigError


@pytest.fixture(autouse=True)
def nothing_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory, and an environment without options."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("TOYMQ_"):
            monkeypatch.delenv(name)


def toymq(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environment)


def shown(*arguments: str, **environment: str) -> dict[str, tuple[object, str]]:
    """Value and origin of each option."""
    result = toymq("config", "show", "--json", *arguments, **environment)
    assert result.exit_code == 0, result.output
    rows = map(json.loads, result.stdout.splitlines())
    return {row["option"]: (row["value"], row["from"]) for row in rows}


def test_without_anything_the_defaults_hold() -> None:
    defaults = ServeOptions()
    found = shown()
    values = {each.name: getattr(defaults, each.attribute) for each in OPTIONS}
    assert found == {name: (list(value) if value == () else value, "default") for name, value in values.items()}


def test_each_source_goes_before_the_next() -> None:
    Path("toymq.toml").write_text('visibility = "7s"\nmax_topics = 7\nlog_level = "error"\nstrict_recovery = true\n')
    found = shown("--visibility", "9s", TOYMQ_VISIBILITY="8s", TOYMQ_MAX_TOPICS="8")
    assert found["visibility"] == (9000, "--visibility")
    assert found["max_topics"] == (8, "TOYMQ_MAX_TOPICS")
    assert found["log_level"] == ("error", "./toymq.toml")
    assert found["strict_recovery"] == (True, "./toymq.toml")
    assert found["fsync"] == ("always", "default")
    assert shown(TOYMQ_STRICT_RECOVERY="false")["strict_recovery"] == (False, "TOYMQ_STRICT_RECOVERY")


def test_a_file_that_is_named_goes_before_the_one_that_is_there() -> None:
    for name, seconds in (("toymq.toml", 1), ("a.toml", 2), ("b.toml", 3)):
        Path(name).write_text(f'visibility = "{seconds}s"')
    assert shown()["visibility"] == (1000, "./toymq.toml")
    assert shown(TOYMQ_CONFIG="a.toml")["visibility"] == (2000, "a.toml")
    assert shown("--config", "b.toml", TOYMQ_CONFIG="a.toml")["visibility"] == (3000, "b.toml")
    assert shown("--config", os.devnull)["visibility"] == (30_000, "default")


def test_the_table_is_for_people() -> None:
    lines = toymq("config", "show", "--segment-bytes", "64KiB").stdout.splitlines()
    assert lines[0].split() == ["option", "value", "from"]
    assert ["segment_bytes", "64KiB", "--segment-bytes"] in [line.split() for line in lines]
    assert len(lines) == 1 + len(OPTIONS)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('visiblity = "1s"', "there is no option visiblity; did you mean visibility?"),
        ('max-payload = "1MiB"', "there is no option max-payload; did you mean max_payload?"),
        ("colour = 1", "there is no option colour"),
        ("visibility = true", "visibility: true is not a duration such as 250ms, 30s or 24h"),
        ("visibility = 1.5", "visibility: 1.5 is not a duration"),
        ('visibility = "soon"', "visibility: invalid duration 'soon'"),
        ('visibility = "0"', "visibility: 0ms is out of range: it must be 1ms to"),
        ("segment_bytes = 0x" + "f" * 9000, "segment_bytes: it must be 4KiB to 1GiB"),
        ('"a\\nb" = 1', "there is no option 'a\\nb'"),
        ("segment_bytes = 1", "segment_bytes: 1B is out of range: it must be 4KiB to 1GiB"),
        ("max_topics = 0", "max_topics: 0 is out of range: it must be 1 to 1048576"),
        ('max_topics = "1e3"', "max_topics: '1e3' is not a whole number"),
        ("strict_recovery = 1", "strict_recovery: 1 is not true or false"),
        ('fsync = "sometimes"', "fsync: 'sometimes' is not one of always, interval, never"),
        ('data_dir = ""', "data_dir: '' is not a path"),
        ('listen = "6789"', "listen: '6789' is not an address"),
        ('listen = "0.0.0.0:1"', "insist with --insecure-public"),
        ('nack_backoff_min = "1m"', "nack_backoff_min_ms is above nack_backoff_max_ms"),
        ("[visibility]", "visibility: {} is not a duration"),
        ("a = ", "not TOML: "),
        ("\udcff", "not TOML: "),
    ],
)
def test_what_is_wrong_in_a_file_is_named(text: str, says: str) -> None:
    Path("bad.toml").write_bytes(text.encode(errors="surrogateescape"))
    for arguments in (["config", "check", "bad.toml"], ["serve", "--config", "bad.toml"]):
        result = toymq(*arguments)
        assert result.exit_code == (1 if "check" in arguments and "not TOML" not in says else 2)
        assert says in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_every_mistake_of_a_file_is_told() -> None:
    Path("bad.toml").write_text('visiblity = "1s"\nmax_topics = 0\nfsync = 3\n')
    result = toymq("config", "check", "bad.toml")
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 3)
    assert "(and 2 more: see `toymq config check bad.toml`)" in toymq("serve", "--config", "bad.toml").stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('auth_file = "none"', ["cannot read the auth file none: No such file or directory"]),
        ('auth_file = "."', ["cannot read the auth file .: Is a directory"]),
        ('auth_file = "bad"', ["bad, line 1: name: "]),
        (f'http = "0.0.0.0:1"\nauth_file = "{CERT}"', [f"{CERT} is not TOML"]),
        (f'https = "127.0.0.1:1"\ntls_cert = "{CERT}"\ntls_key = "{CLIENT_KEY}"', ["is not that of the certificate"]),
        (f'tls_listen = "127.0.0.1:1"\ntls_cert = "none"\ntls_key = "{KEY}"', ["cannot read the certificate none"]),
        (
            f'https = "127.0.0.1:1"\ntls_cert = "{CERT}"\ntls_key = "{KEY}"\ntls_client_ca = "bad"',
            ["the CA bad is not a PEM file"],
        ),
        ('definitions = "none"', ["cannot read the definitions none: No such file or directory"]),
        ('definitions = "bad"', ["bad: there is no section token"]),
        ('auth_file = "none"\ndefinitions = "none"', ["cannot read the definitions none", "cannot read the auth file none"]),
    ],
)
def test_the_files_that_a_file_names_are_read(text: str, says: list[str]) -> None:
    """What `serve` would refuse, in the same words."""
    Path("bad").write_text("[[token]]\n")
    Path("toymq.toml").write_text(text)
    checked = toymq("config", "check")
    lines = checked.stderr.splitlines()
    assert (checked.exit_code, len(lines)) == (1, len(says)), checked.stderr
    assert [part in line for part, line in zip(says, lines, strict=True)] == [True] * len(says), checked.stderr
    assert lines[0] in toymq("serve", "--data-dir", "d").stderr
    assert not Path("d").exists()


def test_a_file_that_is_right() -> None:
    assert "there is no ./toymq.toml: name a file" in toymq("config", "check").stderr
    Path("toymq.toml").write_text("max_topics = 3")
    assert toymq("config", "check").stdout == "./toymq.toml: ok, 1 options are set\n"
    assert toymq("config", "check", "nowhere.toml").stderr == "toymq: nowhere.toml: No such file or directory\n"


def test_a_mistake_in_the_environment_is_told() -> None:
    result = toymq("config", "show", TOYMQ_VISIBILITY="soon")
    assert (result.exit_code, "(from TOYMQ_VISIBILITY)" in result.stderr) == (2, True), result.stderr
    shown_with = toymq("config", "show", TOYMQ_VISIBILTY="1s", TOYMQ_SERVICE_HOST="10.0.0.1")
    assert shown_with.stderr == "toymq: TOYMQ_VISIBILTY is not an option and is ignored; did you mean TOYMQ_VISIBILITY?\n"


def test_every_option_shows_what_it_parses() -> None:
    """What ``config show`` prints can be written into a file."""
    for each in OPTIONS:
        if each.default is not None:
            assert each.kind.parse(each.kind.show(each.default)) == each.default, each.name
            assert each.help.endswith("."), each.name


def test_an_option_with_several_values() -> None:
    kind = Several(Text("an address such as 127.0.0.1:6789", "HOST:PORT", parse_address))
    assert kind.parse("a:1 b:2") == kind.from_toml(["a:1", "b:2"]) == ("a:1", "b:2")
    assert kind.show(("a:1", "b:2")) == "a:1 b:2"
    for wrong in ("a:1", [1], ["a"]):
        with pytest.raises(ConfigError):
            kind.from_toml(wrong)


def test_the_broker_s_options_come_first() -> None:
    """Those of an embedded broker are a part of a served one's."""
    of_broker = options_of(BrokerOptions)
    assert OPTIONS[: len(of_broker)] == of_broker
