"""``toymq config show`` and ``toymq config check``. Contract: clients.md, "Command lines"."""

from pathlib import Path

import pytest

from tests.support.certificates import CERT, CLIENT_KEY, KEY
from tests.unit.cli.test_options import toymq
from toymq_py.cli.options import OPTIONS


def test_the_table_is_for_people() -> None:
    lines = toymq("config", "show", "--segment-bytes", "64KiB").stdout.splitlines()
    assert lines[0].split() == ["option", "value", "from"]
    assert ["segment_bytes", "64KiB", "--segment-bytes"] in [line.split() for line in lines]
    assert len(lines) == 1 + len(OPTIONS)


def test_every_mistake_of_a_file_is_told() -> None:
    Path("bad.toml").write_text('visiblity = "1s"\nmax_topics = 0\nfsync = 3\n')
    result = toymq("config", "check", "bad.toml")
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 3)
    assert "(and 2 more: see `toymq config check bad.toml`)" in toymq("serve", "--config", "bad.toml").stderr


def test_a_file_that_is_no_toml_is_a_mistake_of_the_file() -> None:
    Path("bad.toml").write_text("listen = \n")
    result = toymq("config", "check", "bad.toml")
    assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
    assert result.stderr.startswith("bad.toml")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('auth_file = "none"', ["cannot read the auth file none: No such file or directory"]),
        ('auth_file = "."', ["cannot read the auth file .: Is a directory"]),
        ('auth_file = "bad"', ["bad, line 1: name is missing: "]),
        (f'http = "0.0.0.0:1"\nauth_file = "{CERT}"', [f"{CERT} is not TOML"]),
        (f'https = "127.0.0.1:1"\ntls_cert = "{CERT}"\ntls_key = "{CLIENT_KEY}"', ["is not that of the certificate"]),
        (f'tls_listen = "127.0.0.1:1"\ntls_cert = "none"\ntls_key = "{KEY}"', ["cannot read the certificate none"]),
        (
            f'https = "127.0.0.1:1"\ntls_cert = "{CERT}"\ntls_key = "{KEY}"\ntls_client_ca = "bad"',
            ["the CA certificate file bad is not a PEM file"],
        ),
        ('definitions = "none"', ["cannot read the definitions none: No such file or directory"]),
        ('definitions = "bad"', ["bad: there is no section token"]),
        ('auth_file = "none"\ndefinitions = "none"', ["cannot read the definitions none", "cannot read the auth file none"]),
    ],
)
def test_the_files_that_a_file_names_are_read(text: str, says: list[str]) -> None:
    """The check finds what `serve` would refuse, in the same words."""
    Path("bad").write_text("[[token]]\n")
    Path("toymq.toml").write_text(text)
    checked = toymq("config", "check")
    lines = checked.stderr.splitlines()
    assert (checked.exit_code, len(lines)) == (1, len(says)), checked.stderr
    assert [part in line for part, line in zip(says, lines, strict=True)] == [True] * len(says), checked.stderr
    assert lines[0] in toymq("serve", "--data-dir", "d").stderr
    assert not Path("d").exists()


def test_a_duration_without_its_unit_is_asked_about_as_serve_does() -> None:
    """Found by a trial: serve warned of `visibility = 30`, and the check said ok."""
    Path("toymq.toml").write_text("visibility = 30\nfsync_interval = 5\nmax_attempts = 3\nshutdown_timeout = 5000\n")
    checked = toymq("config", "check")
    asked = [
        f"./toymq.toml: {name} {n} is {n}ms, as a number without a unit is milliseconds: write {n}s or {n}ms"
        for name, n in (("visibility", 30), ("fsync_interval", 5))
    ]
    assert (checked.exit_code, checked.stderr.splitlines()) == (0, asked)
    assert checked.stdout == "./toymq.toml: ok, 4 options set, with 2 warnings\n"


def test_a_file_that_is_right() -> None:
    assert "there is no ./toymq.toml: name a file" in toymq("config", "check").stderr
    Path("toymq.toml").write_text("max_topics = 3")
    assert toymq("config", "check").stdout == "./toymq.toml: ok, 1 option set\n"
    missing = "toymq: cannot read the configuration nowhere.toml: No such file or directory\n"
    assert toymq("config", "check", "nowhere.toml").stderr == missing


def test_a_file_that_every_user_may_change_is_refused() -> None:
    """Found by a trial: any user could name another auth file in it."""
    path = Path("toymq.toml")
    path.write_text("max_topics = 3")
    path.chmod(0o666)
    for command in (("config", "check"), ("config", "show"), ("serve",)):
        result = toymq(*command)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "--config: every user of this machine may write ./toymq.toml (mode 0666); chmod go-w" in result.stderr
    path.chmod(0o644)
    Path("key").write_bytes(Path(KEY).read_bytes())
    Path("key").chmod(0o644)
    path.write_text(f'https = "127.0.0.1:1"\ntls_cert = "{CERT}"\ntls_key = "key"')
    checked = toymq("config", "check")
    assert checked.stdout == "./toymq.toml: ok, 3 options set, with 1 warning\n"
    assert checked.stderr == "--tls-key: every user of this machine may read key (mode 0644); chmod o= key\n"


def test_the_environment_is_checked_as_serve_reads_it() -> None:
    """Found: `serve` refused what the check called ok."""
    Path("toymq.toml").write_text("max_topics = 3")
    bad = {"TOYMQ_MAX_TOPICS": "many", "TOYMQ_STRICT_RECOVERY": "perhaps", "TOYMQ_AUTH_FILE": "none"}
    for name, value in bad.items():
        checked, served = toymq("config", "check", **{name: value}), toymq("serve", "--data-dir", "d", **{name: value})
        (line,) = checked.stderr.splitlines()
        assert checked.exit_code == 1
        assert line.removeprefix(f"{name}: ") in served.stderr
    assert len(toymq("config", "check", **bad).stderr.splitlines()) == 3
    good = {"TOYMQ_MAX_TOPICS": "4", "TOYMQ_VISIBILITY": "30", "TOYMQ_STRICT_RECOVERY": "true"}
    checked = toymq("config", "check", **good)
    assert checked.stdout == "./toymq.toml: ok, 3 options set, 3 by the environment, with 1 warning\n"
    assert checked.stderr.startswith("TOYMQ_VISIBILITY 30 is 30ms")


def test_what_file_and_environment_make_together_is_checked() -> None:
    Path("toymq.toml").write_text('tls_listen = "127.0.0.1:1"')
    assert toymq("config", "check").exit_code == 1
    assert toymq("config", "check", TOYMQ_TLS_CERT=str(CERT), TOYMQ_TLS_KEY=str(KEY)).exit_code == 0


def test_the_environment_alone_is_checked_too() -> None:
    assert toymq("config", "check", TOYMQ_MAX_TOPICS="4").stdout == "the environment: ok, 1 option set, 1 by the environment\n"
    assert "--dialect does nothing without --http" not in toymq("config", "check", TOYMQ_DIALECT="mq").stderr
    assert "TOYMQ_DIALECT does nothing without --http or --https" in toymq("config", "check", TOYMQ_DIALECT="mq").stderr
