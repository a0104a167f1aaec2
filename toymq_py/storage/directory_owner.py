"""Checks the owner of a data directory: its broker cannot read files that root writes there. ADR 0242."""

import os
import pwd

from toymq_py.errors import DataDirectoryError
from toymq_py.storage.fs import FileSystem

ROOT = 0


class NotOwner(DataDirectoryError):
    """Root would write files into the data directory of another user."""


def other_owner(fs: FileSystem, data_dir: str, uid: int) -> int | None:
    """The owner of a data directory, as a uid, if this process runs as root and the owner is another user; None otherwise, and
    for a missing directory.

    What a broker made in the directory tells its owner, since a mounted volume may itself belong to another user. A process
    that is not root needs no check: the system refuses it.

    Args:
        uid: the user that this process runs as.

    Raises: OSError.
    """
    if uid != ROOT:
        return None
    for path in (f"{data_dir}/topics", f"{data_dir}/workers", data_dir):
        if fs.is_dir(path):
            owner = fs.owner(path)
            return None if owner == uid else owner
    return None


def doubt(fs: FileSystem, data_dir: str) -> str | None:
    """Why this process should not write into a data directory; None when it may. Raises: OSError."""
    owner = other_owner(fs, data_dir, os.geteuid())
    return None if owner is None else _doubt(data_dir, owner)


def check_owner(fs: FileSystem, data_dir: str, command: str) -> None:
    """Check the owner before a command writes into the directory of a stopped broker. Raises: NotOwner, with how to run it;
    OSError."""
    owner = other_owner(fs, data_dir, os.geteuid())
    if owner is not None:
        name = _name(owner)
        become = f"runuser -u {name}" if name is not None else f"setpriv --reuid {owner} --clear-groups"
        raise NotOwner(f"{_doubt(data_dir, owner)}: run it as its owner, `{become} -- {command} …`")


def _doubt(data_dir: str, owner: int) -> str:
    return f"{data_dir} belongs to {_name(owner) or f'user {owner}'}, whose broker cannot read what root writes there"


def _name(uid: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
