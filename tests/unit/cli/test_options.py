"""Precedence of options: command line, environment, file, default. Contract: clients.md, "Command lines"."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from toymq_py.cli.main import main
from toymq_py.cli.options import CLIENT_VARIABLES, OPTIONS
from toymq_py.config.option_schema import options_of
from toymq_py.config.options import BrokerOptions, ServeOptions
from toymqctl.cli import main as toymqctl


def toymq(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environment)


def shown(*arguments: str, **environment: str) -> dict[str, tuple[object, str]]:
    """Return value and origin of each option."""
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
        ('workers = "-1"', "workers: -1 is out of range: it must be 1 to 64"),
        ('max_topics = "1e3"', "max_topics: '1e3' is not a whole number"),
        ("strict_recovery = 1", "strict_recovery: 1 is not true or false"),
        ('fsync = "sometimes"', "fsync: 'sometimes' is not one of always, interval, never"),
        ('data_dir = ""', "data_dir: '' is not a path"),
        ('listen = "6789"', "listen: '6789' is not an address"),
        ('listen = "h:99999"', "not an address: write host:port, such as 127.0.0.1:6789, with a port up to 65535"),
        ('listen = "0.0.0.0:1"', "insist with --insecure-public"),
        ('nack_backoff_min = "1m"', "nack_backoff_min_ms is above nack_backoff_max_ms"),
        ("[visibility]", "visibility: {} is not a duration"),
        ("a = ", "not TOML: "),
        ("\udcff", "not UTF-8 at byte 0"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(text: str, says: str) -> None:
    Path("bad.toml").write_bytes(text.encode(errors="surrogateescape"))
    for arguments in (["config", "check", "bad.toml"], ["serve", "--config", "bad.toml"]):
        result = toymq(*arguments)
        assert result.exit_code == (1 if "check" in arguments and "UTF-8" not in says else 2)
        assert says in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_a_mistake_in_the_environment_is_told() -> None:
    result = toymq("config", "show", TOYMQ_VISIBILITY="soon")
    assert (result.exit_code, "(from TOYMQ_VISIBILITY)" in result.stderr) == (2, True), result.stderr
    shown_with = toymq("config", "show", TOYMQ_VISIBILTY="1s", TOYMQ_SERVICE_HOST="10.0.0.1")
    assert shown_with.stderr == "toymq: TOYMQ_VISIBILTY is not an option and is ignored; did you mean TOYMQ_VISIBILITY?\n"
    empty = toymq("config", "show", TOYMQ_AUTH_FILE="", TOYMQ_AMQP="")
    assert empty.stderr == "toymq: TOYMQ_AUTH_FILE is empty and is ignored: name the auth file, or unset it\n"


def test_variables_of_toymqctl_are_no_mistake_of_the_broker_s() -> None:
    """Found: with TOYMQ_TLS_CA, a variable of toymqctl, `config check` failed, and its "did you mean TOYMQ_TLS_CERT?"
    misled."""

    def read_by(command: click.Command) -> Iterator[str]:
        for each in command.params:
            yield from [each.envvar] if isinstance(each.envvar, str) else ()
        if isinstance(command, click.Group):
            ctx = click.Context(command)
            for name in command.list_commands(ctx):
                if (found := command.get_command(ctx, name)) is not None:
                    yield from read_by(found)

    variables = {*read_by(toymqctl), *CLIENT_VARIABLES}
    Path("good.toml").write_text('visibility = "5s"\n')
    mine = {each.variable for each in OPTIONS}
    assert variables - mine == set(CLIENT_VARIABLES)
    result = toymq("config", "check", "good.toml", **dict.fromkeys(variables - mine, "x"))
    assert (result.exit_code, result.stderr) == (0, "")
    result = toymq("config", "check", "good.toml", TOYMQ_TLS_CERT="client.pem", TOYMQ_TLS_KEY="client.key")
    assert result.stdout == "good.toml: ok, 1 option set, with 2 warnings\n", "no listener has TLS"


def test_a_client_s_certificate_of_the_environment_is_not_a_broker_s_that_has_no_tls() -> None:
    """Found: a shell with the certificate variables of toymqctl could not start a broker, and the error named a flag that was
    not given."""
    result = toymq("config", "show", TOYMQ_TLS_CERT="client.pem", TOYMQ_TLS_KEY="client.key")
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines() == [
        f"toymq: {name} is taken for toymqctl's and ignored: nothing listens with TLS (--tls-listen, --https, --amqps)"
        for name in ("TOYMQ_TLS_CERT", "TOYMQ_TLS_KEY")
    ]
    found = shown("--https", "127.0.0.1:0", TOYMQ_TLS_CERT="client.pem", TOYMQ_TLS_KEY="client.key")
    assert found["tls_cert"] == ("client.pem", "TOYMQ_TLS_CERT"), "with a listener that takes one it is its own"
    flag = toymq("config", "show", "--tls-cert", "cert.pem")
    assert (flag.exit_code, "--tls-cert does nothing without" in flag.stderr) == (2, True)
    other = toymq("config", "show", TOYMQ_TLS_CLIENT_CA="ca.pem")
    assert (other.exit_code, "TOYMQ_TLS_CLIENT_CA does nothing without" in other.stderr) == (2, True)


def test_a_duration_without_a_unit_below_a_second_is_asked_about() -> None:
    """Found: `toymq serve --visibility 5` was 5 ms without a warning, but `toymqctl pull --visibility 5` is 5 s."""
    Path("toymq.toml").write_text('shutdown_timeout = 7\nnack_backoff_min = "300"\nretain_acked_for = 60000\nmax_topics = 5\n')
    options = ("--visibility", "5", "--nack-backoff-max", "900ms", "--fsync-interval", "0002")
    result = toymq("config", "show", *options, TOYMQ_MQ_DELAY="9")
    assert (result.exit_code, set(result.stderr.splitlines())) == (0, {
        "toymq: ./toymq.toml: nack_backoff_min 300 is 300ms, as a number without a unit is milliseconds: write 300s or 300ms",
        "toymq: ./toymq.toml: shutdown_timeout 7 is 7ms, as a number without a unit is milliseconds: write 7s or 7ms",
        "toymq: --fsync-interval 2 is 2ms, as a number without a unit is milliseconds: write 2s or 2ms",
        "toymq: --visibility 5 is 5ms, as a number without a unit is milliseconds: write 5s or 5ms",
        "toymq: TOYMQ_MQ_DELAY 9 is 9ms, as a number without a unit is milliseconds: write 9s or 9ms",
    })  # fmt: skip


def test_check_takes_the_file_as_serve_does() -> None:
    Path("good.toml").write_text('visibility = "5s"\n')
    assert toymq("config", "check", "--config", "good.toml").stdout == "good.toml: ok, 1 option set\n"
    both = toymq("config", "check", "good.toml", "--config", "good.toml")
    assert (both.exit_code, "FILE and --config are the same" in both.stderr) == (2, True)


def test_every_option_shows_what_it_parses() -> None:
    """The output of ``config show`` can be used as a configuration file."""
    for each in OPTIONS:
        if each.default is not None:
            assert each.kind.parse(each.kind.show(each.default)) == each.default, each.name
            assert each.help.endswith("."), each.name


def test_the_broker_s_options_come_first() -> None:
    """The options of an embedded broker are a subset of those of a served one."""
    of_broker = options_of(BrokerOptions)
    assert OPTIONS[: len(of_broker)] == of_broker
