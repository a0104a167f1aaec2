"""The simulated disk (``SimDisk``) as a FUSE file system that a real process can use; a test can cut its power.

    with FuseDisk(directory, seed) as disk:     # directory/... behaves like a disk that keeps what was synced
        ...
        disk.cut()                              # from now on every call fails; what was not synced is partly gone
        ...                                     # kill what was running
        disk.restore()
    disk.slow(0.3)                              # from now on each sync of a file takes so many seconds
    disk.lie()                                  # from now on each sync does nothing, and says that it has

Needs libfuse, the right to mount and the package mfusepy: ``@require("fuse")``. ``SimDisk`` decides what a cut leaves. The
kernel does not cache the files, since its cache would survive the cut.

The file system is served by a process of its own (``python -m tests.support.fuse_disk``): a process that used a file system
served by itself would wait for itself.
"""

import errno
import os
import random
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.support.sim_disk import SimDisk, SimFile

NAME = "toymq-powerloss"
BLOCK_BYTES = 4096
TIMEOUT_S = 20
STEP_S = 0.1
"""Of a slow sync."""


def serve(mountpoint: str, seed: int) -> None:
    """Serve the file system until it is unmounted. First prints "ready"; then a line "cut", "restore", "lie" or "slow N" on
    stdin is carried out and answered with the same line."""
    import mfusepy

    class Adapter(mfusepy.Operations):  # type: ignore[misc]
        """Turns calls of libfuse, one at a time, into calls of a ``SimDisk``."""

        use_ns = True

        def __init__(self) -> None:
            self.disk = SimDisk(random.Random(seed), root="", tracing=False, torn_sectors=True)
            self.power = True
            self.sync_s = 0.0
            self.lies = False
            self.switch = threading.Lock()
            self._files: dict[int, SimFile] = {}
            self._next = 1

        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if name.startswith("_") or name not in Adapter.__dict__ or not callable(value):
                return value  # what libfuse is not to call looks different from a function of ours

            def powered(*arguments: Any) -> Any:
                with self.switch:
                    if not self.power and name != "release":
                        raise OSError(errno.EIO, "the power is off")
                    return value(*arguments)

            return powered

        def init_with_config(self, conn_info: Any, config_3: Any) -> None:
            say("ready")

        def getattr(self, path: str | None, fh: int | None = None) -> dict[str, int]:
            file = self._files.get(fh or 0)
            if file is not None:
                return attributes(stat.S_IFREG | 0o644, file.size())
            assert path is not None
            if self.disk.is_dir(path):
                return attributes(stat.S_IFDIR | 0o755, BLOCK_BYTES)
            return attributes(stat.S_IFREG | 0o644, self.disk.file_size(path))

        def _opened(self, path: str, *, create: bool, exclusive: bool, write: bool) -> int:
            file = self.disk.open(path, create=create, exclusive=exclusive, write=write)
            assert isinstance(file, SimFile)
            self._next += 1
            self._files[self._next] = file
            return self._next

        def create(self, path: str, mode: int, fi: Any = None) -> int:
            return self._opened(path, create=True, exclusive=False, write=True)

        def open(self, path: str, flags: int) -> int:
            write = flags & os.O_ACCMODE != os.O_RDONLY
            return self._opened(path, create=False, exclusive=False, write=write)

        def release(self, path: str, fh: int) -> int:
            self._files.pop(fh).close()
            return 0

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return self._files[fh].pread(size, offset)

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            return self._files[fh].pwrite(data, offset)

        def truncate(self, path: str, length: int, fh: int | None = None) -> int:
            file = self._files.get(fh or 0)
            if file is not None:
                file.truncate(length)
                return 0
            opened = self.disk.open(path)
            opened.truncate(length)
            opened.close()
            return 0

        def fallocate(self, path: str, mode: int, offset: int, length: int, fh: int) -> int:
            if mode:
                raise OSError(errno.EOPNOTSUPP, "fallocate")
            self._files[fh].allocate(offset, length)
            return 0

        def fsync(self, path: str, datasync: int, fh: int) -> int:
            left_s = self.sync_s
            while left_s > 0 and self.sync_s:  # "slow 0" ends it
                time.sleep(min(left_s, STEP_S))
                left_s -= STEP_S
            if not self.lies:
                self._files[fh].sync()
            return 0

        def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
            if not self.lies:
                self.disk.sync_dir(path)
            return 0

        def opendir(self, path: str) -> int:
            return 0

        def readdir(self, path: str, fh: int) -> list[str]:
            return [".", "..", *self.disk.listdir(path)]

        def mkdir(self, path: str, mode: int) -> int:
            self.disk.mkdir(path)
            return 0

        def rmdir(self, path: str) -> int:
            self.disk.rmdir(path)
            return 0

        def unlink(self, path: str) -> int:
            self.disk.unlink(path)
            return 0

        def rename(self, old: str, new: str, *_: Any) -> int:
            self.disk.rename(old, new)
            return 0

        def statfs(self, path: str) -> dict[str, int]:
            free = self.disk.free_bytes(path) // BLOCK_BYTES
            return {"f_bsize": BLOCK_BYTES, "f_frsize": BLOCK_BYTES, "f_blocks": free, "f_bfree": free, "f_bavail": free}

    adapter = Adapter()

    def obey() -> None:
        for word in sys.stdin:
            if word.startswith("slow "):
                adapter.sync_s = float(word.split()[1])
                say(word.strip())
                continue
            with adapter.switch:
                if word.strip() == "lie":
                    adapter.lies = True
                elif word.strip() == "cut":
                    adapter.power = False
                    adapter.disk = adapter.disk.crash()
                else:
                    adapter.power = True
            say(word.strip())

    threading.Thread(target=obey, daemon=True).start()
    mfusepy.FUSE(
        adapter, mountpoint, foreground=True, nothreads=True, fsname=NAME, direct_io=True, hard_remove=True,
        attr_timeout=0, entry_timeout=0, negative_timeout=0,
    )  # fmt: skip


def attributes(mode: int, size: int) -> dict[str, int]:
    return {"st_mode": mode, "st_size": size, "st_nlink": 1, "st_uid": os.getuid(), "st_gid": os.getgid()}


def say(word: str) -> None:
    sys.stdout.write(word + "\n")
    sys.stdout.flush()


class FuseDisk:
    """A mounted simulated disk. A context manager."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self._seed = seed
        self._process: subprocess.Popen[str]

    def __enter__(self) -> "FuseDisk":
        command = [sys.executable, "-m", "tests.support.fuse_disk", str(self.path), str(self._seed)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )
        self._expect("ready")
        return self

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", "-l", str(self.path)], check=False)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def cut(self) -> None:
        """Cut the power: every call fails, and writes that were not synced may be kept, lost, torn or reordered."""
        self._order("cut")

    def restore(self) -> None:
        """Restore the power; open files are lost."""
        self._order("restore")

    def slow(self, sync_s: float) -> None:
        """Make each sync of a file take ``sync_s`` seconds from now on. The kernel waits, and so does the process that
        asked."""
        self._order(f"slow {sync_s}")

    def lie(self) -> None:
        """Make each sync succeed without an effect from now on."""
        self._order("lie")

    def _order(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        self._expect(word)

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        said = self._process.stdout.readline()
        assert said == word + "\n", f"the file system said {said!r}"


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
