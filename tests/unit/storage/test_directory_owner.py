"""Root and the data directory of another user. ADR 0242. With real users: tests/e2e/test_directory_owner.py."""

import os
import pwd
from pathlib import Path

import pytest

from toymq_py.storage.directory_owner import NotOwner, check_owner, doubt, other_owner
from toymq_py.storage.fs import RealFileSystem

BROKER = 4711


class Owned(RealFileSystem):
    """A file system on which every name belongs to root, except the given ones."""

    def __init__(self, owners: dict[str, int]) -> None:
        self._owners = owners

    def owner(self, path: str) -> int:
        return self._owners.get(Path(path).name, 0)


@pytest.mark.parametrize(
    ("there", "owners", "found"),
    [
        ([], {}, None),
        ([], {"data": BROKER}, BROKER),
        (["topics"], {"data": BROKER, "topics": BROKER}, BROKER),
        (["topics"], {"topics": BROKER}, BROKER),
        (["workers"], {"workers": BROKER}, BROKER),
        (["topics"], {"data": BROKER}, None),
        (["topics", "workers"], {"workers": BROKER}, None),
    ],
    ids=[
        "root's, empty", "another's, empty", "another's", "another's below a volume of root", "another's, divided",
        "root's below a volume of another", "topics come first",
    ],
)  # fmt: skip
def test_what_the_broker_made_says_whose_it_is(
    tmp_path: Path, there: list[str], owners: dict[str, int], found: int | None
) -> None:
    for name in ("data", *(f"data/{name}" for name in there)):
        (tmp_path / name).mkdir()
    assert other_owner(Owned(owners), f"{tmp_path}/data", 0) == found
    assert other_owner(Owned(owners), f"{tmp_path}/data", BROKER + 1) is None, "the system refuses others than root"


def test_a_missing_directory_belongs_to_whoever_makes_it(tmp_path: Path) -> None:
    assert other_owner(Owned({"data": BROKER}), f"{tmp_path}/data", 0) is None


def test_the_error_says_how_to_become_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fs, data = Owned({tmp_path.name: BROKER}), str(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(NotOwner) as refused:
        check_owner(fs, data, "toymq repair")
    assert str(refused.value) == (
        f"{data} belongs to user {BROKER}, whose broker cannot read what root writes there: run it as its owner, "
        f"`setpriv --reuid {BROKER} --clear-groups -- toymq repair …`"
    )
    named = pwd.struct_passwd(("toymq", "x", BROKER, BROKER, "", "/", "/usr/sbin/nologin"))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: named)
    with pytest.raises(NotOwner, match=r"belongs to toymq, .*: run it as its owner, `runuser -u toymq -- toymq repair …`"):
        check_owner(fs, data, "toymq repair")
    assert doubt(fs, data) == f"{data} belongs to toymq, whose broker cannot read what root writes there"
    monkeypatch.setattr(os, "geteuid", lambda: BROKER)
    check_owner(fs, data, "toymq repair")
    assert doubt(fs, data) is None
