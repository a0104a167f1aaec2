"""What the disk's errors mean: which of them pass by themselves, and what a client hears of each."""

import errno
from collections.abc import Callable

from toymq_py.errors import DiskFull, RequestError, StorageFailed

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""Nothing was written: there was no file to write to. It passes, like a full disk."""
LASTING = (errno.EACCES, errno.EPERM, errno.EIO, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO)
"""Of opening a file: the next try would meet it again."""


class BeingExamined(BlockingIOError):
    """Damage was met in a segment, and a thread looks how far it goes: what is behind it cannot be read before that.
    ``when_done`` has a call called once it is known."""

    def __init__(self, path: str, when_done: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(errno.EAGAIN, "a damaged segment is being examined; try again in a moment", path)
        self.when_done = when_done


def what_passes(error: OSError) -> str | None:
    """What is lacking, when that ends by itself and nothing is damaged. None for other errors."""
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
