"""A bucket: objects by key, on an object store or in a directory. Blocks; for one thread.

An object appears whole or not at all, also when its writer is killed. ``obstore`` (the extra ``lake``) is imported only for a
URL that needs it.
"""

import contextlib
import errno
from collections.abc import Iterator
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from toymq_py.command_line import install_hint
from toymq_py.config.tier_url import parse_tier
from toymq_py.errors import ConfigError, LocalError
from toymq_py.storage.fs import FileSystem, write_synced

CLIENT: Any = {"timeout": "60s", "connect_timeout": "5s", "allow_http": True}
RETRIES: Any = {"max_retries": 2}
"""The client library's retries: few, as the caller tries again by itself."""
NO_FILE = (errno.ENXIO, errno.EISDIR)
"""Errors for what is no file: a pipe, a socket, a device; a directory."""


class BucketError(LocalError):
    """The bucket cannot be reached, or refuses the call. The outcome of a put is then unknown."""


class Bucket(Protocol):
    """Objects by key. All methods may raise BucketError."""

    def identity(self) -> object:
        """An identity of the bucket. If it changes, the bucket was away or is another one, so its known content may be
        wrong."""

    def put_new(self, key: str, data: bytes) -> bool:
        """Store an object unless the key exists. Returns: whether it was stored."""

    def put(self, key: str, data: bytes) -> None:
        """Store an object, replacing one with the same key."""

    def get(self, key: str) -> bytes | None:
        """An object; None when there is none."""

    def size(self, key: str) -> int | None:
        """The size of an object; None when there is none."""

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """A part of an object, shorter if the object ends before; None when there is no such object."""

    def keys(self, folder: str = "") -> Iterator[str]:
        """All keys below the prefix in the bucket's URL, or below a folder of it."""

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""


def check_there(bucket: Bucket) -> None:
    """Check, when an object is missing, that the bucket has any object at all. Otherwise it may be an unmounted file system,
    which is an empty directory or none, and the object is not gone.

    Raises: BucketError.
    """
    if next(bucket.keys(), None) is None:
        raise BucketError("the bucket is empty: is its file system mounted, and the URL the one of --tier?")


def open_bucket(url: str, fs: FileSystem, *, read_only: bool = False) -> Bucket:
    """Open the bucket at a URL.

    Args:
        read_only: a missing directory is not made; it counts as a bucket that is away.

    Raises: ConfigError for an invalid URL, or if the extra ``lake`` is missing.
    """
    parse_tier(url)
    if url.startswith("file:"):
        return DirectoryBucket(fs, unquote(urlsplit(url).path), is_made=read_only)
    try:
        from obstore.store import from_url
    except ModuleNotFoundError:
        raise ConfigError(f"{url.partition(':')[0]}:// needs obstore: {install_hint('lake')}") from None
    try:
        return ObjectStoreBucket(from_url(url, client_options=CLIENT, retry_config=RETRIES))
    except Exception as error:  # it has no class for what a URL may have
        raise ConfigError(f"cannot open {url}: {_line(error)}") from error


class DirectoryBucket:
    """Objects as files of a directory, synced before they get their name. Assumes that nothing else writes there: the check
    whether a key exists and the creation of its file are two steps.

    A pipe or a directory with the name of an object reads as an empty object: it counts as damaged, and others can be read.

    The directory is made at the first put or call of ``identity``, and never again: if it is missing later, its file system is
    not mounted.
    """

    def __init__(self, fs: FileSystem, path: str, *, is_made: bool = False) -> None:
        """``is_made``: the directory should already exist."""
        self._fs = fs
        self._path = path.rstrip("/")
        self._is_made = is_made
        self._times_away = 0

    def identity(self) -> object:
        with _named():
            self._make_root()
            return self._fs.inode(self._path), self._times_away

    def _make_root(self) -> None:
        if not self._is_made:
            self._make(self._path)
            self._is_made = self._fs.is_dir(self._path)
        self._check_root()

    def _check_root(self) -> None:
        """Check the directory. Raises: BucketError when it was made before and is missing."""
        if self._is_made and not self._fs.is_dir(self._path):
            self._times_away += 1
            raise BucketError(f"the bucket: the directory {self._path} is gone: mount its file system, or make it")

    def put_new(self, key: str, data: bytes) -> bool:
        self._check_root()
        if self._fs.exists(f"{self._path}/{key}"):
            return False
        self.put(key, data)
        return True

    def put(self, key: str, data: bytes) -> None:
        path = f"{self._path}/{key}"
        with _named():
            self._make_root()
            self._make(path.rpartition("/")[0])
            write_synced(self._fs, f"{path}.tmp", data)  # that of a writer that was killed is written over
            self._fs.rename(f"{path}.tmp", path)
            self._fs.sync_dir(path.rpartition("/")[0])

    def get(self, key: str) -> bytes | None:
        with _named():
            self._check_root()
            try:
                return self._fs.read_file(f"{self._path}/{key}")
            except FileNotFoundError:
                return None
            except OSError as error:
                return _empty_if_no_file(error)

    def size(self, key: str) -> int | None:
        with _named():
            self._check_root()
            try:
                return self._fs.file_size(f"{self._path}/{key}")
            except FileNotFoundError:
                return None

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        with _named():
            self._check_root()
            try:
                file = self._fs.open(f"{self._path}/{key}", write=False)
                try:
                    return file.pread(length, start)
                finally:
                    file.close()
            except FileNotFoundError:
                return None
            except OSError as error:
                return _empty_if_no_file(error)

    def keys(self, folder: str = "") -> Iterator[str]:
        with _named():
            self._check_root()
            yield from self._under(folder and f"{folder}/") if self._fs.is_dir(f"{self._path}/{folder}") else ()

    def _under(self, folder: str) -> Iterator[str]:
        for name in self._fs.listdir(f"{self._path}/{folder}".rstrip("/")):
            if self._fs.is_dir(f"{self._path}/{folder}{name}"):
                yield from self._under(f"{folder}{name}/")
            elif not name.endswith(".tmp"):
                yield folder + name

    def delete(self, key: str) -> None:
        with _named():
            self._check_root()
            with contextlib.suppress(FileNotFoundError):
                self._fs.unlink(f"{self._path}/{key}")
            folder = key.rpartition("/")[0]
            while folder and self._fs.is_dir(f"{self._path}/{folder}"):
                try:
                    self._fs.rmdir(f"{self._path}/{folder}")
                except OSError:  # other objects are in it
                    break
                folder = folder.rpartition("/")[0]

    def _make(self, folder: str) -> None:
        if not self._fs.is_dir(folder):
            if folder == self._path:
                self._check_root()
            parent = folder.rpartition("/")[0] or "/"
            self._make(parent)
            self._fs.mkdir(folder)
            self._fs.sync_dir(parent)


class ObjectStoreBucket:
    """Objects of an object store."""

    def __init__(self, store: Any) -> None:
        import obstore

        self._store = store
        self._api = obstore

    def identity(self) -> object:
        return None

    def put_new(self, key: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError

        with _named():
            try:
                self._api.put(self._store, key, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    def put(self, key: str, data: bytes) -> None:
        with _named():
            self._api.put(self._store, key, data, use_multipart=False)

    def get(self, key: str) -> bytes | None:
        with _named():
            try:
                return bytes(self._api.get(self._store, key).bytes())
            except FileNotFoundError:
                return None

    def size(self, key: str) -> int | None:
        with _named():
            try:
                return int(self._api.head(self._store, key)["size"])
            except FileNotFoundError:
                return None

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        with _named():
            try:
                size = self._api.head(self._store, key)["size"]  # a store refuses a range behind the end
                return bytes(self._api.get_range(self._store, key, start=start, length=length)) if start < size else b""
            except FileNotFoundError:
                return None

    def keys(self, folder: str = "") -> Iterator[str]:
        with _named():
            for some in self._api.list(self._store, folder or None):
                yield from (found["path"] for found in some)

    def delete(self, key: str) -> None:
        with _named(), contextlib.suppress(FileNotFoundError):
            self._api.delete(self._store, key)


def _empty_if_no_file(error: OSError) -> bytes:
    """Return b"" if the error says that a path is not a regular file. Raises: any other error."""
    if error.errno not in NO_FILE:
        raise error
    return b""


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """A context in which the errors of the object store's library become BucketError."""
    try:
        yield
    except BucketError:
        raise
    except Exception as error:  # obstore raises classes of its own, and of Python
        raise BucketError(f"the bucket: {_line(error)}") from error


def _line(error: Exception) -> str:
    """The first line of an error's text: obstore appends its whole state."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
