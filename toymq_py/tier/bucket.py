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
    """The bucket cannot be reached, or refuses. Of a put the outcome is unknown then."""


class Bucket(Protocol):
    """Objects by key. All raise BucketError."""

    def identity(self) -> object:
        """The identity of the bucket. If it changes, the bucket was away or is another one, so its content is not known."""

    def put_new(self, key: str, data: bytes) -> bool:
        """Store an object unless the key exists. Returns: whether it was stored."""

    def put(self, key: str, data: bytes) -> None:
        """Store an object, replacing the one of the key."""

    def get(self, key: str) -> bytes | None:
        """An object; None when there is none."""

    def size(self, key: str) -> int | None:
        """The size of an object; None when there is none."""

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        """A part of the object, shorter where it ends; None when there is none."""

    def keys(self, folder: str = "") -> Iterator[str]:
        """All keys of the bucket's prefix, or of a folder below it."""

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""


def check_there(bucket: Bucket) -> None:
    """Check, when an object is missing, that the bucket exists: the object is gone only if there is anything at all, since an
    unmounted file system is an empty directory, or none.

    Raises: BucketError.
    """
    if next(bucket.keys(), None) is None:
        raise BucketError("the bucket is empty: is its file system mounted, and the URL the one of --tier?")


def open_bucket(url: str, fs: FileSystem, *, read_only: bool = False) -> Bucket:
    """
    Args:
        read_only: a missing directory is not made; it counts as a bucket that is away.

    Raises: ConfigError for an invalid URL, or without the extra.
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
    """Objects as files of a directory, synced before they have their name. Assumes that nothing else writes there: a key is
    looked at, and then it is taken.

    What has the name of an object and is no file, as a pipe or a directory, reads as an object without content: it is damaged,
    and the others can be read.

    The directory is made for the first put, or when the identity is asked for, and never again: one that is gone later is on a
    file system that is not mounted.
    """

    def __init__(self, fs: FileSystem, path: str, *, is_made: bool = False) -> None:
        """``is_made``: the directory should be there already."""
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
        """Check the directory. Raises: BucketError when it was made, and is gone."""
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
    """Return no content for something that is not a file. Raises: the error, when it is of a file."""
    if error.errno not in NO_FILE:
        raise error
    return b""


@contextlib.contextmanager
def _named() -> Iterator[None]:
    """A context in which a library's errors become BucketError."""
    try:
        yield
    except BucketError:
        raise
    except Exception as error:  # obstore raises classes of its own, and of Python
        raise BucketError(f"the bucket: {_line(error)}") from error


def _line(error: Exception) -> str:
    """The first line of an error: obstore adds its whole state behind it."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
