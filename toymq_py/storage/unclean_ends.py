"""``unclean-ends``: how many lives of a broker in a row had no clean stop. The present one counts from its start.

A text file with a number, of this machine alone; there is none after a clean stop. It is written without a sync: what is
counted are processes that die, and those leave the file to the next one. ADR 0249.
"""

from contextlib import suppress

from toymq_py.storage.fs import FileSystem, write_all

FILE_NAME = "unclean-ends"
DIGITS_MAX = 9


def count_life(fs: FileSystem, data_dir: str) -> int:
    """Count a life that begins. Returns: how many before it, in a row, had no clean stop. Assumes that the directory is locked.
    A file that cannot be read or written counts as none."""
    before = 0
    with suppress(OSError):
        file = fs.open(f"{data_dir}/{FILE_NAME}", create=True)
        try:
            text = file.pread(DIGITS_MAX, 0)
            before = int(text) if text.isdigit() else 0
            file.truncate(0)
            write_all(file, b"%d" % min(before + 1, 10**DIGITS_MAX - 1), 0)
        finally:
            file.close()
    return before


def end_cleanly(fs: FileSystem, data_dir: str) -> None:
    """This life has a clean stop."""
    with suppress(OSError):
        fs.unlink(f"{data_dir}/{FILE_NAME}")
