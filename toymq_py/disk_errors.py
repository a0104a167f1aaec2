"""The meaning of disk errors: which are temporary, and which error a client gets."""

import errno
from collections.abc import Callable

from toymq_py.errors import DiskFull, RequestError, StorageFailed, TierAway

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""Errors for lack of descriptors: nothing was written. Temporary, like a full disk."""
LASTING = (
    errno.EACCES, errno.EPERM, errno.EIO, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ESTALE,
)  # fmt: skip
"""Permanent errors of opening a file: a retry would fail again. ESTALE: another file has its name."""


def is_lasting(error: OSError) -> bool:
    """Whether a read error will recur on the next try. Commands that read many files report such a file and go on (ADR
    0217)."""
    return error.errno in LASTING


def unreadable_text(error: OSError) -> str:
    """The text that reports an unreadable file."""
    return f"it cannot be read: {error.strerror or error}"


Done = Callable[[OSError | RequestError | None], None]


class BeingExamined(BlockingIOError):
    """A segment is damaged, and a thread is searching for the end of the damage. Records behind it cannot be read until then.

    ``when_done`` registers a function to call when the search has ended.
    """

    def __init__(self, path: str, when_done: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(errno.EAGAIN, "a damaged segment is being examined; try again in a moment", path)
        self.when_done = when_done
        self.problem: str | None = None
        """Why the wait may be long: a request that can be made again is answered with it."""

    def begin_wait(self, call: Callable[[], None]) -> Callable[[], None]:
        """Register a function as ``when_done`` does, for callers that want to withdraw it. Returns: a function that does
        nothing, since the call comes only once."""
        self.when_done(call)
        return lambda: None


class BeingFetched(BeingExamined):
    """Only the bucket of ``--tier`` has a segment, and a thread fetches it. ``when_done`` registers a function to call when the
    current try has ended, successful or not."""

    def __init__(self, path: str, when_done: Callable[[Callable[[], None]], None], problem: str | None) -> None:
        super().__init__(path, when_done)
        text = "the bucket has these records, and they are being fetched" if problem is None else problem
        self.strerror = f"{text}; try again in a moment"
        self.problem = problem


def when_readable(begin: Callable[[Done], None], done: Done) -> None:
    """Call ``begin``; if it needs a segment that is just being examined or fetched, call it again afterwards, unless that may
    take long. Raises: the error of the first call."""
    try:
        begin(done)
    except BeingExamined as busy:
        if busy.problem is not None:
            raise

        def again() -> None:
            try:
                when_readable(begin, done)
            except (OSError, RequestError) as error:
                done(error)

        busy.when_done(again)


def what_passes(error: OSError) -> str | None:
    """The description of a temporary shortage of disk space or descriptors; None for other errors."""
    if error.errno in NO_SPACE:
        return "no space left on the disk"
    return "no file descriptor left" if error.errno in NO_DESCRIPTORS else None


def storage_error(error: OSError) -> RequestError:
    """The error that a client gets for an error of the disk."""
    if passes := what_passes(error):
        return DiskFull(passes)
    if isinstance(error, BeingFetched):
        return TierAway(str(error.strerror))
    if isinstance(error, BeingExamined):
        return StorageFailed(str(error.strerror))
    return StorageFailed(f"the disk failed: {error.strerror or error}")
