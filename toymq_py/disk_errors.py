"""The meaning of disk errors: which are temporary, and which error a client gets."""

import errno
from collections.abc import Callable

from toymq_py.errors import DiskFull, RequestError, StorageFailed

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""Nothing was written. Temporary, like a full disk."""
LASTING = (
    errno.EACCES, errno.EPERM, errno.EIO, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ESTALE,
)  # fmt: skip
"""Permanent errors of opening a file: a retry would fail again. ESTALE: another file has its name."""


class BeingExamined(BlockingIOError):
    """A segment is damaged, and a thread is searching for the end of the damage: nothing behind it can be read before.

    ``when_done`` registers a call for the end of the search.
    """

    def __init__(self, path: str, when_done: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(errno.EAGAIN, "a damaged segment is being examined; try again in a moment", path)
        self.when_done = when_done


def what_passes(error: OSError) -> str | None:
    """Describe a temporary shortage; None for other errors."""
    if error.errno in NO_SPACE:
        return "no space left on the disk"
    return "no file descriptor left" if error.errno in NO_DESCRIPTORS else None


def storage_error(error: OSError) -> RequestError:
    """The error that a client is told for an error of the disk."""
    if passes := what_passes(error):
        return DiskFull(passes)
    if isinstance(error, BeingExamined):
        return StorageFailed(str(error.strerror))
    return StorageFailed(f"the disk failed: {error.strerror or error}")
