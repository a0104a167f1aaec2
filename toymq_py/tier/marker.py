"""The mark of a bucket, which a data directory remembers, so that an unmounted file system is not taken for an empty bucket.
ADR 0183.

``.toymq-bucket.json`` is put into a bucket at its first use; then ``tier.json`` of the data directory records which bucket was
used. If a recorded bucket lacks its mark, it counts as away, and nothing is written.
"""

import secrets
from collections.abc import Callable

from toymq_py.errors import DamagedData
from toymq_py.storage import checked_json
from toymq_py.storage.fs import FileSystem, replace_file
from toymq_py.tier.bucket import Bucket, BucketError

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
        """Check the bucket before a write to it; changes nothing. Raises: BucketError when the bucket is away, or another one
        than recorded."""
        data = self._bucket.get(KEY)
        known = self._known()
        is_used = known is not None and _word(known, "url") in (self._url, None)
        if data is None:
            if is_used:
                why = f"{self._url} was used by this directory, and has no {KEY}"
                text = f"{why}: its file system is not mounted, or it was emptied"
                raise BucketError(f"the bucket: {text}; mount it, or remove {self._path} to begin with an empty bucket")
            return
        found, expected = _word(data, "id"), _word(known or b"", "id")
        if found is None:
            why = f"{KEY} of {self._url} cannot be read, so which bucket it is cannot be told"
            remedy = f"remove {KEY} and {self._path}" if is_used else f"remove {KEY}"
            raise BucketError(f"the bucket: {why}; mount the right one, or if it is the right one {remedy}")
        if is_used and expected not in (found, None):
            why = f"{self._url} is another bucket than the one that this directory has used: its {KEY} says {found}"
            text = f"{why}, and {self._path} says {expected}"
            raise BucketError(f"the bucket: {text}; mount the right one, or remove {self._path} to go on with this one")

    def settle(self) -> None:
        """Check the bucket as ``check`` does, and mark one that was not used before. Raises: BucketError, OSError."""
        self.check()
        data = self._bucket.get(KEY)
        if data is None:
            self._bucket.put_new(KEY, checked_json.encode("bucket", {"id": self._new_id()}))
            self.check()  # another process may have been quicker
            data = self._bucket.get(KEY) or b""
        known, found = self._known() or b"", _word(data, "id")
        if (_word(known, "url"), _word(known, "id")) == (self._url, found):
            return
        replace_file(self._fs, self._path, checked_json.encode("bucket", {"url": self._url, "id": found}))

    def _known(self) -> bytes | None:
        """The content of ``tier.json``, which names the bucket used so far; None without one, b"" if it is damaged."""
        try:
            return checked_json.read(self._fs, self._path)
        except DamagedData:
            return b""


def _word(data: bytes, name: str) -> str | None:
    """The text under ``name`` in a file of checked JSON; None when the file is damaged."""
    try:
        word = checked_json.decode("bucket", data).get(name)
    except DamagedData:
        return None
    return word if isinstance(word, str) else None
