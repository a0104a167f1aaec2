"""Configurations that an embedded host refuses before it starts."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from toymq_py.config.options import BrokerOptions
from toymq_py.embedded.host import EMBEDDED, EmbeddedHost
from toymq_py.errors import ConfigError, DataDirectoryError, DirectoryLocked


@pytest.mark.parametrize(
    ("path", "options", "error", "says"),
    [
        ("", None, ConfigError, "path is empty"),
        ("toymq://s3cret@localhost", None, ConfigError, "path is the URL of a broker, toymq:…, not a directory: use connect"),
        (7, None, TypeError, "invalid path 7: pass the str or Path"),
        ("d", {"fsync": "off"}, TypeError, "invalid options .*: pass a toymq_py.config.options.BrokerOptions or None"),
        ("d", BrokerOptions(data_dir="e"), ConfigError, "options has data_dir 'e': leave it out"),
    ],
)
def test_wrong_arguments_are_named_with_the_remedy(path: Any, options: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        EmbeddedHost(path, options, 1.0)


def test_a_host_that_was_not_started_has_nothing_to_end(tmp_path: Path) -> None:
    host = EmbeddedHost(tmp_path / "d", None, 1.0)
    host.stop()
    host.close()
    assert not host.started
    assert host.socket_path == f"{tmp_path}/d/toymq.sock"
    assert host.lock_path == f"{tmp_path}/d/LOCK"
    assert not (tmp_path / "d").exists()


def test_a_refused_directory_is_explained(tmp_path: Path) -> None:
    host = EmbeddedHost(tmp_path, EMBEDDED, 1.0)
    standalone = DirectoryLocked("d", 7, "toymq://127.0.0.1:1")
    assert host._explained(standalone) is standalone
    silent = host._explained(DirectoryLocked("d", 7))
    explained = "connect to a broker that runs by itself by its address"
    assert silent.__notes__ == [f"nothing answers at {tmp_path}/toymq.sock: {explained}"]
    denied = host._explained(PermissionError(13, "Permission denied"))
    assert isinstance(denied, DataDirectoryError)
    assert str(denied) == f"cannot serve {tmp_path}: Permission denied"


def test_it_serves_until_it_is_closed(tmp_path: Path) -> None:
    host = EmbeddedHost(tmp_path / "d", None, 5.0)
    host.start()
    host.start()
    host.ready.result(10)
    assert Path(host.socket_path).is_socket()
    host.close()
    host.ended.result(10)
    assert not Path(host.socket_path).exists(), "only the serving process has a socket there"


@pytest.mark.parametrize("part", ["", "/topics"])
def test_a_directory_that_is_not_the_one_that_was_opened_is_lost(tmp_path: Path, part: str) -> None:
    host = EmbeddedHost(tmp_path / "d", None, 5.0)
    assert host.lost() is None, "it is not opened"
    host.start()
    host.ready.result(10)
    assert host.lost() is None
    path = Path(f"{tmp_path}/d{part}")
    path.rename(tmp_path / "elsewhere")
    assert str(host.lost()) == f"{path} was removed below the running broker: open it again"
    path.mkdir()
    assert str(host.lost()) == f"{path} was replaced below the running broker: open it again"
    host.close()


def test_the_socket_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    """Found: with an application umask of 0 another user could connect and take messages."""
    directory = tmp_path / "d"
    directory.mkdir()
    directory.chmod(0o777)
    before = os.umask(0)
    host = EmbeddedHost(directory, None, 5.0)
    try:
        host.start()
        host.ready.result(10)
        assert {each.name for each in directory.iterdir() if each.stat().st_mode & 0o077} == set()
    finally:
        os.umask(before)
        host.close()


def test_a_machine_without_a_thread_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: at the exit of the process the host that had not started raised again."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    host = EmbeddedHost(tmp_path / "d", None, 5.0)
    with pytest.raises(ConfigError, match="ulimit -u"):
        host.start()
    host.close()
    assert not host.started
