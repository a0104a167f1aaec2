"""The errors that a client gets for disk errors."""

import errno

import pytest

from toymq_py.disk_errors import BeingExamined, storage_error, what_passes
from toymq_py.errors import DiskFull, StorageFailed


@pytest.mark.parametrize(
    ("code", "passes", "refusal"),
    [
        (errno.ENOSPC, "no space left on the disk", DiskFull),
        (errno.EDQUOT, "no space left on the disk", DiskFull),
        (errno.EMFILE, "no file descriptor left", DiskFull),
        (errno.ENFILE, "no file descriptor left", DiskFull),
        (errno.EIO, None, StorageFailed),
        (errno.EROFS, None, StorageFailed),
    ],
)
def test_what_ends_by_itself_may_be_tried_again(code: int, passes: str | None, refusal: type[DiskFull]) -> None:
    error = OSError(code, "why")
    assert what_passes(error) == passes
    found = storage_error(error)
    assert type(found) is refusal
    assert str(found) == (passes or "the disk failed: why")


def test_a_segment_that_is_being_examined_is_no_failed_disk() -> None:
    assert str(storage_error(BeingExamined("p", lambda call: None))).startswith("a damaged segment is being examined")
