"""Fake buckets of an object store: one in memory, and one whose calls fail before or after they take effect."""

import random
from collections.abc import Callable, Iterator
from typing import TypeVar

from toymq_py.tier.bucket import BucketError

T = TypeVar("T")


class Killed(BaseException):
    """Raised where the process of the caller is to die."""


class MemoryBucket:
    """A bucket whose objects are in a dict."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def identity(self) -> object:
        return None

    def put_new(self, key: str, data: bytes) -> bool:
        if key in self.objects:
            return False
        self.objects[key] = data
        return True

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = data

    def get(self, key: str) -> bytes | None:
        return self.objects.get(key)

    def size(self, key: str) -> int | None:
        return None if key not in self.objects else len(self.objects[key])

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        return None if key not in self.objects else self.objects[key][start : start + length]

    def keys(self, folder: str = "") -> Iterator[str]:
        yield from sorted(key for key in self.objects if key.startswith(folder and f"{folder}/"))

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)


class FaultyBucket:
    """Passes calls on to another bucket. A ``share`` of the calls fails: it is refused, or done but its answer is lost, or the
    caller is killed before or after it."""

    def __init__(self, bucket: MemoryBucket, chance: random.Random, share: float) -> None:
        self._bucket = bucket
        self._chance = chance
        self.share = share
        self.faults = 0

    def identity(self) -> object:
        return self._try(self._bucket.identity)

    def put_new(self, key: str, data: bytes) -> bool:
        return self._try(lambda: self._bucket.put_new(key, data))

    def put(self, key: str, data: bytes) -> None:
        self._try(lambda: self._bucket.put(key, data))

    def get(self, key: str) -> bytes | None:
        return self._try(lambda: self._bucket.get(key))

    def size(self, key: str) -> int | None:
        return self._try(lambda: self._bucket.size(key))

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        return self._try(lambda: self._bucket.get_range(key, start, length))

    def keys(self, folder: str = "") -> Iterator[str]:
        yield from self._try(lambda: list(self._bucket.keys(folder)))

    def delete(self, key: str) -> None:
        self._try(lambda: self._bucket.delete(key))

    def _try(self, call: Callable[[], T]) -> T:
        if self._chance.random() >= self.share:
            return call()
        self.faults += 1
        error = self._chance.choice([BucketError("away"), Killed()])
        if self._chance.random() < 0.5:
            call()
        raise error
