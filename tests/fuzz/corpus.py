"""The kept corpus: the smallest set of inputs that atheris found with all they reach, and how it is chosen."""

import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

CORPUS = Path(__file__).parent / "corpus"
FILE_BYTES_MAX = 4096

Arc = tuple[str, int, int]
"""File, and two lines that were run one after the other in one function."""
Feature = tuple[Arc, int]
"""And how often, in bits: once, twice, up to four times, …"""
FILES_MAX = 60


def kept(target: str) -> list[Path]:
    """Return the corpus files of a target, sorted."""
    return sorted((CORPUS / target).iterdir())


def reached(call: Callable[[bytes], Any], data: bytes) -> set[Feature]:
    """Return which jumps between lines of the broker's code an input reaches, and roughly how often each."""
    arcs: Counter[Arc] = Counter()

    def trace(frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        name = frame.f_code.co_filename
        if "toymq_py" not in name:
            return None
        before = 0

        def line(frame: FrameType, event: str, _argument: object) -> Callable[..., Any]:
            nonlocal before
            if event == "line":
                arcs[name, before, frame.f_lineno] += 1
                before = frame.f_lineno
            return line

        return line

    sys.settrace(trace)
    try:
        call(data)
    finally:
        sys.settrace(None)
    return {(arc, count.bit_length()) for arc, count in arcs.items()}


def smallest(call: Callable[[bytes], Any], inputs: Iterable[bytes], known: set[Feature]) -> list[bytes]:
    """Choose few and small inputs that together reach nearly everything that all inputs reach and ``known`` lacks; those that
    add most come first."""
    chosen: list[bytes] = []
    have = set(known)
    found = [(data, reached(call, data)) for data in sorted(set(inputs), key=lambda data: (len(data), data))]
    while found and len(chosen) < FILES_MAX:
        data, features = max(found, key=lambda pair: (len(pair[1] - have), -len(pair[0])))
        if not features - have:
            break
        chosen.append(data)
        have |= features
        found = [pair for pair in found if pair[1] - have]
    return chosen


def keep(target: str, chosen: list[bytes]) -> None:
    """Replace the corpus files of a target by the chosen inputs."""
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for data in chosen:
        (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
