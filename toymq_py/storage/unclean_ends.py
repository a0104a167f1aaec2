"""``unclean-ends``: how many runs of a broker in a row had no clean stop. The present run counts from its start.

A text file with a number, of this machine alone; there is none after a clean stop. It is written without a sync: the death of a
process does not lose it, and only that is counted. ADR 0249.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress

from toymq_py.storage.fs import FileSystem, write_all

FILE_NAME = "unclean-ends"
DIGITS_MAX = 9


def count_life(fs: FileSystem, data_dir: str) -> int:
    """Count a run that begins. Returns: how many runs before it, in a row, had no clean stop. Assumes that the directory is
    locked. A file that cannot be read or written counts as none."""
    before = _count(fs, data_dir)
    _store(fs, data_dir, before + 1)
    return before


def _count(fs: FileSystem, data_dir: str) -> int:
    with suppress(OSError):
        file = fs.open(f"{data_dir}/{FILE_NAME}", write=False)
        try:
            text = file.pread(DIGITS_MAX, 0)
        finally:
            file.close()
        return int(text) if text.isdigit() else 0
    return 0


def _store(fs: FileSystem, data_dir: str, number: int) -> None:
    with suppress(OSError):
        file = fs.open(f"{data_dir}/{FILE_NAME}", create=True)
        try:
            file.truncate(0)
            write_all(file, b"%d" % min(number, 10**DIGITS_MAX - 1), 0)
        finally:
            file.close()


def carry_over(fs: FileSystem, directories: Iterable[str], homes: Sequence[str]) -> None:
    """Carry the counts over when topics have moved to other directories. A message that kills the broker may be in any of them,
    so each of the new directories, ``homes``, gets the highest count. Call it again after a kill."""
    counts = {directory: _count(fs, directory) for directory in directories}
    most = max(counts.values(), default=0)
    for home in homes if most else ():
        _store(fs, home, most)
    for directory in counts.keys() - set(homes):
        end_cleanly(fs, directory)


def uncount_life(fs: FileSystem, data_dir: str, before: int) -> None:
    """Take this run out of the count: it ends, but the process did not die. ``before``: the count before this run."""
    if before:
        _store(fs, data_dir, before)
    else:
        end_cleanly(fs, data_dir)


def end_cleanly(fs: FileSystem, data_dir: str) -> None:
    """Remove the count: this run has a clean stop."""
    with suppress(OSError):
        fs.unlink(f"{data_dir}/{FILE_NAME}")
