"""Where the tests' etcd comes from, on a machine without one: scripts replace Debian's programs."""

import os
import shutil
from pathlib import Path

import pytest

from tests.support.etcd import find_etcd

APT_GET = """#!{sh}
{touch} etcd-server_3.4.23-4_amd64.deb
"""
DPKG = """#!{sh}
[ "$1 $2" = "-x etcd-server_3.4.23-4_amd64.deb" ] || exit 1
{mkdir} -p "$3/usr/bin"
{touch} "$3/usr/bin/etcd"
{chmod} +x "$3/usr/bin/etcd"
"""
TOOLS = {name: shutil.which(name) for name in ("sh", "touch", "mkdir", "chmod")}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return directory


def program(directory: Path, name: str, text: str) -> None:
    path = directory / name
    path.write_text(text.format(**TOOLS))
    path.chmod(0o700)


def test_debians_package_is_unpacked_once_and_nothing_is_installed(tmp_path: Path, programs: Path) -> None:
    cache = tmp_path / ".cache" / "etcd"
    program(programs, "apt-get", APT_GET)
    program(programs, "dpkg", DPKG)
    assert find_etcd(cache) is None
    assert shutil.which("etcd") == str(cache / "usr/bin/etcd")
    assert [path.name for path in cache.parent.iterdir()] == ["etcd"], "what was fetched is removed"
    os.environ["PATH"] = str(programs)
    program(programs, "apt-get", "#!{sh}\nexit 1\n")
    assert find_etcd(cache) is None, "it is there"


@pytest.mark.parametrize("fails", ["apt-get", "dpkg", None])
def test_without_it_the_reason_says_what_to_install(tmp_path: Path, programs: Path, fails: str | None) -> None:
    cache = tmp_path / ".cache" / "etcd"
    if fails is not None:
        program(programs, "apt-get", APT_GET)
        program(programs, "dpkg", DPKG)
        program(programs, fails, "#!{sh}\nexit 1\n")
    assert find_etcd(cache) == "there is no etcd: sudo apt-get install etcd-server"
    assert not cache.exists()


def test_an_installed_one_is_taken(tmp_path: Path, programs: Path) -> None:
    program(programs, "etcd", "#!{sh}\n")
    assert find_etcd(tmp_path / "cache") is None
    assert os.environ["PATH"] == str(programs)
