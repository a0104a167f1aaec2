"""Which incarnation is a topic's, where its files name several: one was put there without the others. ADR 0281.

``segments.json``, ``offsets.json`` (or else its previous generation) and ``topic.json`` name one each, or none. Only a sound
file of this topic counts.

    1  the heads of segments.json fit more segments than they contradict: its incarnation. The log is its own truth.
    2  they contradict more than they fit: segments.json has no say.
    3  two files name the same incarnation: that one.
    4  otherwise that of segments.json, of the offsets, of topic.json: the first that has a say.

A file that names another incarnation is as a damaged one. So what loses does little harm: ``segments.json`` is made anew from
the log, and without settings nothing is removed.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

from toymq_py.errors import DamagedData
from toymq_py.storage import checked_json
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.segment import topic_of

OFFSETS = (("offsets.json", "state"), ("offsets.json.prev", "state"))
SETTINGS = (("topic.json", "settings"),)
"""Files, and the names of the objects in them."""
_WORD = re.compile(rb'"incarnation": "([0-9a-f]{16})"')


def decide(fs: FileSystem, path: str, of_segments: str | None, balance: Callable[[], int]) -> str | None:
    """The incarnation of the topic in a directory; None when no file names one. As long as all files agree, only their first
    bytes are read.

    Args:
        of_segments: what ``segments.json`` names.
        balance: returns how many more segments its heads fit than they contradict.

    Raises: OSError of a passing shortage.
    """
    named = claims(fs, path, of_segments)
    if len(named) < 2:
        return next(iter(named), None)
    weight = 0 if of_segments is None else balance()
    if weight > 0:
        return of_segments
    first = [] if of_segments is None or weight < 0 else [of_segments]
    words = [*first, *islice(_words(fs, path, OFFSETS), 1), *_words(fs, path, SETTINGS)]
    return max(words, key=words.count, default=of_segments)


def claims(fs: FileSystem, path: str, of_segments: str | None) -> set[str]:
    """The incarnations that files of a topic name, unchecked but for that in ``segments.json``."""
    words = (of_segments, *(checked_json.peek(fs, f"{path}/{name}", _WORD) for name, _ in OFFSETS + SETTINGS))
    return {word for word in words if word is not None}


def _words(fs: FileSystem, path: str, files: tuple[tuple[str, str], ...]) -> Iterator[str]:
    """The words of those files that are sound, and of this topic."""
    for name, kind in files:
        with suppress(DamagedData):
            found = checked_json.decode(kind, checked_json.read(fs, f"{path}/{name}") or b"")
            word = checked_json.incarnation_of(found)
            if word is not None and found.get("topic", topic_of(path)) == topic_of(path):
                yield word
