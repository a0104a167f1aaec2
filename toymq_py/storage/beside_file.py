"""A file of the broker beside the topics of a data directory, such as ``webhooks.json``: small, checked, replaced as a whole.

The one place that reads and writes such a file, for the broker, ``toymq backup``, ``verify`` and ``repair``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from toymq_py.errors import DamagedData
from toymq_py.storage import checked_json
from toymq_py.storage.fs import FileSystem, replace_file


@dataclass(frozen=True, slots=True)
class BesideFile:
    """One file beside the topics of a data directory; ``decode`` checks its content."""

    name: str
    decode: Callable[[bytes], object]
    """Decodes the file's content. Raises: DamagedData."""
    private: bool
    """Whether the file holds secrets: only its owner may read it."""
    when_damaged: str
    """What the broker does without the file."""
    put_aside: str
    """What to do after ``toymq repair`` has put the file aside."""

    def read(self, fs: FileSystem, directory: str) -> bytes | None:
        """Read the file; None without one. Blocks. Raises: DamagedData when it cannot be read; OSError for a temporary
        shortage."""
        return checked_json.read(fs, f"{directory}/{self.name}")

    def write(self, fs: FileSystem, directory: str, data: bytes) -> None:
        """Replace the file, synced. Blocks. Raises: OSError."""
        replace_file(fs, f"{directory}/{self.name}", data, private=self.private)

    def examine(self, fs: FileSystem, directory: str) -> tuple[bytes | None, DamagedData | None]:
        """The bytes of the file, None without one, and what is wrong with it: damaged, or unreadable. Blocks. Raises: OSError
        for a temporary shortage."""
        data = None
        try:
            data = self.read(fs, directory)
            if data is not None:
                self.decode(data)
        except DamagedData as error:
            return data, error
        return data, None

    def problem(self, fs: FileSystem, directory: str) -> DamagedData | None:
        """What is wrong with the file; None if it is valid or missing. Blocks."""
        return self.examine(fs, directory)[1]
