"""A small file system that can be filled without harm to the machine."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

SIZE_BYTES = 96 << 20
CHUNK = bytes(1 << 16)


class SmallDisk:
    """A small file system in memory (tmpfs), made by ``mount``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def mount(cls, path: Path) -> tuple["SmallDisk | None", str | None]:
        """Mount a small disk at an empty directory. Returns: the disk, or the reason why that failed."""
        if os.geteuid() != 0:
            return None, "mounting a file system needs root"
        command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_BYTES}", "toymq-chaos", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            return None, str(error)
        return (None, done.stderr.strip()) if done.returncode else (cls(path), None)

    def fill(self) -> None:
        """Fill the disk with a file."""
        with suppress(OSError), (self._path / "filler").open("ab", buffering=0) as filler:
            while filler.write(CHUNK):
                pass

    def free(self) -> None:
        """Remove the file with which ``fill`` filled the disk."""
        (self._path / "filler").unlink(missing_ok=True)

    def unmount(self) -> None:
        """Unmount the disk; its files are gone."""
        subprocess.run(["umount", "-l", str(self._path)], check=False)
