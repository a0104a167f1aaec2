"""Files that every user of the machine may change are refused. ADR 0280."""

import os
import stat
from pathlib import Path

import pytest

from toymq_py import file_access
from toymq_py.errors import ConfigError
from toymq_py.file_access import check_access


def made(path: Path, mode: int) -> str:
    path.write_text("x")
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("mode", "directory_mode", "says"),
    [
        (0o600, 0o700, None),
        (0o640, 0o755, None),  # root's, for a group of the broker, as PostgreSQL has it
        (0o660, 0o770, None),  # a group is a decision; Kubernetes' fsGroup, say
        (0o600, 0o1777, None),  # with the sticky bit each may replace only its own; Kubernetes mounts a Secret so
        (0o666, 0o700, r"--tls-key: every user of this machine may write .*file \(mode 0666\); chmod go-w"),
        (0o602, 0o700, r"may write .* \(mode 0602\)"),
        (0o600, 0o777, r"may replace .*: .*/etc has mode 0777; chmod go-w"),
    ],
)
def test_a_file_that_every_user_may_change_is_refused(tmp_path: Path, mode: int, directory_mode: int, says: str | None) -> None:
    directory = tmp_path / "etc"
    directory.mkdir()
    path = made(directory / "file", mode)
    directory.chmod(directory_mode)
    link = tmp_path / "link"
    link.symlink_to(path)
    for name in (path, str(link)):
        if says is None:
            assert check_access(name, "--tls-key", secret=True) is None
        else:
            with pytest.raises(ConfigError, match=says if name == path else None):
                check_access(name, "--tls-key")


def test_a_secret_that_every_user_may_read_is_said(tmp_path: Path) -> None:
    """And not refused: Kubernetes makes the files of a Secret so by default."""
    path = made(tmp_path / "key", 0o644)
    says = f"--tls-key: every user of this machine may read {path} (mode 0644); chmod o= {path}"
    assert check_access(path, "--tls-key", secret=True) == says
    assert check_access(path, "--tls-cert") is None


def test_a_directory_above_that_every_user_may_replace_is_said(tmp_path: Path) -> None:
    """A user that may write to a parent directory can rename the file's directory and put another one in its place."""
    volume = tmp_path / "etc"
    (volume / "private").mkdir(parents=True)
    path = made(volume / "private" / "auth.toml", 0o600)
    assert check_access(path, "--auth-file") is None
    volume.chmod(0o777)
    says = f"--auth-file: every user of this machine may replace {path}: {volume} has mode 0777; chmod go-w {volume}"
    assert check_access(path, "--auth-file") == says
    volume.chmod(0o1777)
    assert check_access(path, "--auth-file") is None


def test_a_config_map_of_kubernetes_is_only_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory has mode 0777, the file is behind two links, and the file system is mounted read-only."""
    volume = tmp_path / "etc"
    (volume / "..2026").mkdir(parents=True)
    made(volume / "..2026" / "toymq.toml", 0o644)
    (volume / "..data").symlink_to("..2026")
    (volume / "toymq.toml").symlink_to("..data/toymq.toml")
    volume.chmod(0o777)
    path = str(volume / "toymq.toml")
    with pytest.raises(ConfigError, match="may replace"):
        check_access(path, "--config")
    real = os.statvfs

    def read_only(where: Path) -> os.statvfs_result:
        found = list(real(where))
        found[8] |= os.ST_RDONLY
        return os.statvfs_result(found)

    monkeypatch.setattr(file_access.os, "statvfs", read_only)
    assert "may replace" in str(check_access(path, "--config"))


def test_what_is_no_file_has_nothing_to_change(tmp_path: Path) -> None:
    """``TOYMQ_CONFIG=/dev/null`` of the image; a missing file is for its reader to tell."""
    assert stat.S_IMODE(Path(os.devnull).stat().st_mode) & stat.S_IWOTH
    assert check_access(os.devnull, "--config") is None
    assert check_access(str(tmp_path / "none"), "--config") is None
