"""What the disk's errors mean: which of them pass by themselves, and what a client hears of each."""

import errno

from toymq_py.errors import DiskFull, RequestError, StorageFailed

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""Nothing was written: there was no file to write to. It passes, like a full disk."""


def what_passes(error: OSError) -> str | None:
    """What is lacking, when that ends by itself and nothing is damaged. None for other errors."""
    if error.errno in NO_SPACE:
        return "no space left on the disk"
    return "no file descriptor left" if error.errno in NO_DESCRIPTORS else None


def storage_error(error: OSError) -> RequestError:
    """What a client hears of the disk."""
    if passes := what_passes(error):
        return DiskFull(passes)
    return StorageFailed(f"the disk failed: {error.strerror or error}")
