"""Chains of valid frames that were shifted by bytes before them: by inserted bytes, or by a range that stands there twice (ADR
0238).

Pure: bytes and chains in, chains out. Behind such bytes the log goes on with the very next id, and none is missing.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from toymq_py.storage.readings import Chain, Keys, goes_on
from toymq_py.storage.record import LENGTH_MIN, U32

HEADER_BYTES = LENGTH_MIN
"""The bytes of length, id, time and the lengths of key and payload: no payload begins before so many bytes of its record."""

AT_BREAK = (False, 0)
"""The key of the chains that have only whole frames before them, from the break on."""

SEVERAL = (True, -1)
"""The key of the chains that hold several records."""

CHAINS_MAX = 4096
"""Most chains: damage leaves a few. Bytes that are made to have many would cost more for each byte, the more bytes there
are."""

ValidFrame = Callable[[int], tuple[int, int] | None]
"""The id and size of the valid frame at a position."""


def shifted(
    data: bytes, chains: Sequence[Chain], start: int, valid_frame: ValidFrame
) -> tuple[list[Chain], list[tuple[Keys, Keys]]]:
    """The chains behind a break, split by ``split_copies``, and their ``joints``. More than ``CHAINS_MAX`` chains are left as
    they are, and join no others."""
    if len(chains) > CHAINS_MAX:
        return list(chains), [((), ())] * len(chains)
    pieces, copies = split_copies(data, chains)
    return pieces, joints(data, pieces, copies, start, valid_frame)


def split_copies(data: bytes, chains: Sequence[Chain]) -> tuple[list[Chain], dict[int, int]]:
    """Split chains behind each frame that is, byte for byte, also the last frame of another chain: what follows one copy may
    follow the other one, too. Frames of equal ids that differ split nothing.

    Returns: the chains, and a number for each position behind such a frame; copies of one frame have the same number.
    """
    spans = _ids_of_several(chains)
    lasts: dict[bytes, int] = {}
    if spans:
        for chain in chains:
            for pos, msg_id, size in _frames(data, chain, spans):
                if msg_id == chain.next_id - 1:
                    lasts.setdefault(data[pos : pos + size], len(lasts))
    copies: dict[int, int] = {}
    cuts: list[tuple[int, int]] = []
    if lasts:
        ids = {chain.next_id - 1 for chain in chains}
        for chain in chains:
            for pos, msg_id, size in _frames(data, chain, spans):
                if msg_id in ids and (number := lasts.get(data[pos : pos + size])) is not None:
                    copies[pos + size] = number
                    cuts.append((pos + size, msg_id + 1))
    return list(_pieces(chains, cuts)), copies


def _ids_of_several(chains: Sequence[Chain]) -> list[tuple[int, int]]:
    """The spans of ids that more than one chain has, in order."""
    spans: list[tuple[int, int]] = []
    reached = 0
    for chain in sorted(chains, key=lambda chain: chain.first_id):
        low, high = chain.first_id, min(chain.next_id, reached)
        if low < high:
            if spans and low <= spans[-1][1]:
                spans[-1] = spans[-1][0], max(high, spans[-1][1])
            else:
                spans.append((low, high))
        reached = max(reached, chain.next_id)
    return spans


def _frames(data: bytes, chain: Chain, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Position, id and size of the frames of a chain that have ids of the spans."""
    row = max(bisect_left(spans, (chain.first_id + 1,)) - 1, 0)
    pos = chain.start
    for msg_id in range(chain.first_id, chain.next_id):
        while row < len(spans) and spans[row][1] <= msg_id:
            row += 1
        if row == len(spans) or spans[row][0] >= chain.next_id:
            return
        size = 4 + U32.unpack_from(data, pos)[0]
        if spans[row][0] <= msg_id:
            yield pos, msg_id, size
        pos += size


def _pieces(chains: Sequence[Chain], cuts: Sequence[tuple[int, int]]) -> Iterator[Chain]:
    row = 0
    for chain in chains:
        marks = [(chain.start, chain.first_id)]
        while row < len(cuts) and cuts[row][0] < chain.end:
            if cuts[row][0] > chain.start:
                marks.append(cuts[row])
            row += 1
        marks.append((chain.end, chain.next_id))
        for (start, first_id), (end, next_id) in pairwise(marks):
            yield Chain(start, end, first_id, next_id)


def joined(chains: Sequence[Chain]) -> list[Chain]:
    """Make one chain of those that follow each other without a byte between."""
    whole: list[Chain] = []
    for chain in chains:
        last = whole[-1] if whole else None
        if last is not None and (last.end, last.next_id) == (chain.start, chain.first_id):
            whole[-1] = Chain(last.start, chain.end, last.first_id, chain.next_id)
        else:
            whole.append(chain)
    return whole


def joints(
    data: bytes, chains: Sequence[Chain], copies: Mapping[int, int], start: int, valid_frame: ValidFrame
) -> list[tuple[Keys, Keys]]:
    """For each chain, the keys by which it may follow another chain without a missing id, and the keys by which another may
    follow it: two chains join when they share a key. They share one when only whole frames, and fewer bytes than a header has,
    stand between them, so that no payload begins there; when the later one stands behind a copy of the earlier one's end; or
    when both hold several records, and little contradicts them."""
    several = _several(data, chains)
    found: list[tuple[Keys, Keys]] = []
    pos, number = start, 0
    for chain, many in zip(chains, several, strict=True):
        while pos < chain.start and (frame := valid_frame(pos)) is not None and pos + frame[1] <= chain.start:
            pos += frame[1]
        if chain.start - pos >= HEADER_BYTES:
            number += 1
        run = ((False, number), SEVERAL) if many else ((False, number),)
        before = ((True, copies[chain.start]),) if pos == chain.start and pos in copies else ()
        behind = ((True, copies[chain.end]),) if chain.end in copies else ()
        found.append(((*run, *before), (*run, *behind)))
        pos = chain.end
    return found


def _several(data: bytes, chains: Sequence[Chain]) -> list[bool]:
    """Whether each chain, with the chains that go on from it, holds several records of which few are contradicted by a
    different frame of the same id. The payload of the expected record may hold frames of its own id and the next ones; the
    records behind it contradict all but the first."""
    seen: dict[int, bytes] = {}
    differ: set[int] = set()
    spans = _ids_of_several(chains)
    for chain in chains if spans else ():
        for pos, msg_id, size in _frames(data, chain, spans):
            checksum = data[pos + size - 4 : pos + size]
            if seen.setdefault(msg_id, checksum) != checksum:
                differ.add(msg_id)
    ids = sorted(differ)
    flags: list[bool] = []
    on = goes_on(chains)
    for row, chain in enumerate(chains):
        count = chain.next_id - chain.first_id
        many = count > 1 or on[row] or (row > 0 and on[row - 1])
        flags.append(many and 2 * (bisect_left(ids, chain.next_id) - bisect_left(ids, chain.first_id)) < count)
    return flags
