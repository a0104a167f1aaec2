"""The files that the options of ``serve`` name, and their permissions."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.certificates import CERT, CLIENT_CERT, KEY
from toymq_py.config.options import ServeOptions
from toymq_py.errors import ConfigError
from toymq_py.option_files import NAMED, SECRET, check_files, read_files

TOKEN = f'[[token]]\nname = "a"\nsha256 = "{"0" * 64}"\n'
OPTIONS = {"tls_cert": CERT, "tls_key": KEY, "tls_client_ca": CLIENT_CERT}


def options_in(directory: Path) -> ServeOptions:
    """Options whose files are copies in a directory, and which the broker's user alone may read."""
    paths = {name: str(directory / name) for name in OPTIONS}
    for name, path in paths.items():
        shutil.copy(OPTIONS[name], path)
    auth_file = directory / "auth_file"
    auth_file.write_text(TOKEN)
    for each in directory.iterdir():
        each.chmod(0o600)
    return ServeOptions(tls_listen="127.0.0.1:0", auth_file=str(auth_file), **paths)


def test_every_bad_file_is_named_at_once(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.write_text("?")
    bad.chmod(0o600)
    options = ServeOptions(auth_file=str(bad), definitions=str(bad), tls_cert=str(bad), tls_key=KEY, tls_listen="127.0.0.1:0")
    problems, _ = check_files(options)
    assert len(problems) == 3
    assert all(str(bad) in problem for problem in problems)
    assert check_files(options_in(tmp_path)) == ([], [])


def test_every_option_that_names_a_file_is_under_the_rule() -> None:
    assert {*OPTIONS, "auth_file", "definitions", "etcd_ca", "replicate_cert", "replicate_token_file"} < NAMED.keys()
    assert "data_dir" not in NAMED
    assert {name for name in NAMED if name.endswith(("_key", "token_file"))} < SECRET


@pytest.mark.parametrize("name", [*OPTIONS, "auth_file"])
def test_a_file_that_every_user_may_write_is_refused(name: str, tmp_path: Path) -> None:
    """Found by a trial: another user appended a CA to the file of --tls-client-ca, and was an administrator."""
    options = options_in(tmp_path)
    reloads = read_files(options).reloads(options)
    says = f"{NAMED[name]}: every user of this machine may write {tmp_path / name} (mode 0666)"
    (tmp_path / name).chmod(0o666)
    problems, _ = check_files(options)
    assert [problem.startswith(says) for problem in problems] == [True], problems
    with pytest.raises(ConfigError, match=NAMED[name]):
        read_files(options)
    with pytest.raises(ConfigError, match=NAMED[name]):
        reloads["tokens" if name == "auth_file" else "certificates"]()


def test_files_of_which_only_the_permissions_are_known_here(tmp_path: Path) -> None:
    """The client of etcd reads its own."""
    path = tmp_path / "file"
    path.write_text("x")
    path.chmod(0o644)
    options = replace(
        ServeOptions(), etcd_key=str(path), etcd_ca=str(path), replicate_token_file=str(path), cluster="c",
        etcd="https://e1:2379", etcd_cert=str(path),
    )  # fmt: skip
    assert [line.partition(":")[0] for line in check_files(options)[1]] == ["--etcd-key", "--replicate-token-file"]
    path.chmod(0o666)
    assert len(check_files(options)[0]) == 4
    path.chmod(0o600)
    path.write_text("two words")
    assert check_files(options) == ([f"{path} must hold one word of printable ASCII"], [])


def test_a_key_that_every_user_may_read_is_said_at_each_reading(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = options_in(tmp_path)
    reloads = read_files(options).reloads(options)
    assert not caplog.records
    (tmp_path / "tls_key").chmod(0o644)
    reloads["certificates"]()
    read_files(options)
    says = f"--tls-key: every user of this machine may read {tmp_path}/tls_key (mode 0644); chmod o= {tmp_path}/tls_key"
    assert [record.getMessage() for record in caplog.records] == [says] * 2
    assert check_files(options) == ([], [says])


@pytest.mark.parametrize(("name", "what"), [("auth_file", "tokens"), ("tls_key", "certificates")])
def test_a_pipe_is_not_read_again(tmp_path: Path, name: str, what: str) -> None:
    """Found: SIGHUP with a pipe in the place of the auth file waited for a writer, and SIGTERM did nothing."""
    reloads = read_files(options_in(tmp_path)).reloads(options_in(tmp_path))
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name, 0o600)
    with pytest.raises(ConfigError, match=f"{name.replace('_', '-')}: {tmp_path}/{name} is a pipe, which is read"):
        reloads[what]()
