"""Which other users of the machine may change or read a file that an operator names.

Contract: reliability.md, "Security"; ADR 0280. One rule for tokens, keys, certificates, CAs, secrets, definitions and the
configuration: each of them decides what a client may do. Knows modes, not contents.
"""

import os
import stat
from pathlib import Path

from toymq_py.errors import ConfigError


def check_access(path: str, option: str, *, secret: bool = False) -> str | None:
    """Check the permissions of a file. Blocks.

    Args:
        option: what names the file, such as ``--auth-file``; for messages.
        secret: a file that others may read is worth a warning.

    Returns: a warning when every user may read a secret, or may replace a directory above the file's own, or its own on a file
        system that is mounted read-only here: Kubernetes mounts a ConfigMap so, 0777. None for a missing file, which its reader
        reports.

    Raises: ConfigError when every user may write the file, or replace it because its directory is writable without the sticky
        bit.
    """
    try:
        mode = Path(path).stat().st_mode
        above = {Path(path).absolute(), Path(path).resolve()}
        modes = {directory: directory.stat().st_mode for file in above for directory in file.parents}
        replaceable = {
            directory: f"{option}: every user of this machine may replace {path}: {directory} has mode {each & 0o7777:04o}; "
            f"chmod go-w {directory}"
            for directory, each in modes.items()
            if each & stat.S_IWOTH and not each & stat.S_ISVTX
        }
        refused = [file.parent for file in above if file.parent in replaceable and not _is_read_only(file.parent)]
    except OSError:
        return None
    if stat.S_ISCHR(mode):  # /dev/null
        return None
    shown = f"{path} (mode {mode & 0o7777:04o})"
    if mode & stat.S_IWOTH:
        raise ConfigError(f"{option}: every user of this machine may write {shown}; chmod go-w {path}")
    for own in refused:
        raise ConfigError(replaceable[own])
    if secret and mode & stat.S_IROTH:
        return f"{option}: every user of this machine may read {shown}; chmod o= {path}"
    return next(iter(replaceable.values()), None)  # a volume of a container often is so, and has no other users


def _is_read_only(directory: Path) -> bool:
    return bool(os.statvfs(directory).f_flag & os.ST_RDONLY)
