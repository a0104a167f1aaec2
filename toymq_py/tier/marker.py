"""A mark in the bucket, and what a data directory knows of it: a file system that is not mounted is no empty bucket. ADR 0183.

``.toymq-bucket.json`` is put into a bucket at its first use; ``tier.json`` of the data directory says behind it which bucket
was used. So a bucket without its mark that this directory has used is away, and nothing is written to what stands in its place.
"""

import logging
import secrets
from collections.abc import Callable

from toymq_py.errors import DamagedData
from toymq_py.storage import checked_json
from toymq_py.storage.fs import FileSystem, read_if_there, replace_file
from toymq_py.tier.bucket import Bucket, BucketError

logger = logging.getLogger("toymq_py.tier")

KEY = ".toymq-bucket.json"
"""No topic has such a name."""
FILE_NAME = "tier.json"


class Marker:
    """The mark of one bucket, for one data directory."""

    def __init__(
        self, fs: FileSystem, bucket: Bucket, url: str, data_dir: str, new_id: Callable[[], str] = lambda: secrets.token_hex(8)
    ) -> None:
        self._fs = fs
        self._bucket = bucket
        self._url = url.rstrip("/")
        self._path = f"{data_dir}/{FILE_NAME}"
        self._new_id = new_id

    def check(self) -> None:
        """Before something is written to the bucket. Changes nothing. Raises: BucketError when it is away."""
        data = self._bucket.get(KEY)
        known = read_if_there(self._fs, self._path)
        if data is None and known is not None and _word(known, "url") in (self._url, None):
            why = f"{self._url} was used by this directory, and has no {KEY}: its file system is not mounted, or it was emptied"
            raise BucketError(f"the bucket: {why}; mount it, or remove {self._path} to begin with an empty bucket")

    def settle(self) -> None:
        """As ``check``; a bucket that was not used before gets its mark. Raises: BucketError, OSError."""
        self.check()
        data = self._bucket.get(KEY)
        if data is None:
            self._bucket.put_new(KEY, checked_json.encode("bucket", {"id": self._new_id()}))
            data = self._bucket.get(KEY) or b""  # another process may have been quicker
        known, found = read_if_there(self._fs, self._path) or b"", _word(data, "id")
        if (_word(known, "url"), _word(known, "id")) == (self._url, found):
            return
        if _word(known, "url") == self._url:
            logger.warning("%s is another bucket than before, by its %s: what it lacks is uploaded", self._url, KEY)
        replace_file(self._fs, self._path, checked_json.encode("bucket", {"url": self._url, "id": found}))


def _word(data: bytes, name: str) -> str | None:
    """A word of one of the two files; None when it is damaged."""
    try:
        word = checked_json.decode("bucket", data).get(name)
    except DamagedData:
        return None
    return word if isinstance(word, str) else None
