"""Payloads made of valid frames: whatever is damaged around them, nothing forged becomes a record (ADR 0003)."""

import random
import struct
from collections.abc import Iterator

import pytest

from tests.support.frames import encode_attributes, encode_frame
from tests.support.logs import PATH, TS_NS, disk_with, ids_of, recover, some_frames
from toymq_py.storage.offline.dump import dump_topic
from toymq_py.storage.record import FRAME_OVERHEAD, Frame, valid_frame
from toymq_py.storage.salvage import Salvage

BEFORE = some_frames(5)
CARRIER_ID = 5


def chain(first_id: int, count: int, payload: bytes = b"forged") -> bytes:
    return b"".join(encode_frame(n, TS_NS + n, b"", payload) for n in range(first_id, first_id + count))


def carriers() -> Iterator[tuple[str, bytes]]:
    """Yield records whose payload or header block contains frames of many ids."""
    for first_id in (0, 4, CARRIER_ID, CARRIER_ID + 1, CARRIER_ID + 2, CARRIER_ID + 40):
        for count in (1, 3, 40):
            inner = chain(first_id, count)
            yield f"{count} from {first_id}", encode_frame(CARRIER_ID, TS_NS, b"", inner)
            yield f"{count} from {first_id}, padded", encode_frame(CARRIER_ID, TS_NS, b"key", b"p" * 100 + inner + b"q" * 50)
            block = encode_attributes(headers=inner)
            yield f"{count} from {first_id}, in headers", encode_frame(CARRIER_ID, TS_NS, b"", b"x", block)


CARRIERS = list(carriers())


def recovered(data: bytes) -> set[bytes]:
    disk = disk_with({0: data})
    recover(disk)
    return {item.payload for item in dump_topic(disk, PATH) if isinstance(item, Frame)}


@pytest.mark.parametrize("carrier", [frame for _, frame in CARRIERS], ids=[name for name, _ in CARRIERS])
def test_a_carrier_with_records_behind_it(carrier: bytes) -> None:
    """The first bytes of the carrier's header are zeroed, a few or many, or one byte of it is damaged: the carrier is lost, and
    the records behind it stay."""
    behind = some_frames(5, seed=2, first_id=CARRIER_ID + 1)
    head, tail = b"".join(BEFORE), b"".join(behind)
    damaged = [bytes(n) + carrier[n:] for n in range(4, 27)]
    damaged += [carrier[:n] + bytes([carrier[n] ^ 0x81]) + carrier[n + 1 :] for n in range(26)]
    for record in damaged:
        log = recover(disk_with({0: head + record + tail}))
        assert ids_of(log) == [n for n in range(11) if n != CARRIER_ID]
        assert b"forged" not in recovered(head + record + tail)


@pytest.mark.parametrize("carrier", [frame for _, frame in CARRIERS], ids=[name for name, _ in CARRIERS])
def test_a_carrier_that_was_torn(carrier: bytes) -> None:
    """The carrier's header is whole, and the log is cut anywhere in the carrier: it is a torn tail."""
    head = b"".join(BEFORE)
    for cut in range(1, len(carrier), 7):
        log = recover(disk_with({0: head + carrier[:cut]}))
        assert ids_of(log) == list(range(CARRIER_ID)), f"cut at {cut}"


@pytest.mark.parametrize("carrier", [frame for _, frame in CARRIERS], ids=[name for name, _ in CARRIERS])
def test_a_carrier_at_the_end_with_its_header_zeroed(carrier: bytes) -> None:
    """No frame in the payload becomes a record when the rest of the header still tells where the carrier ends, when there is no
    room for records with the forged ids, or when the next segment's name gives the id at which this one ends."""
    head = b"".join(BEFORE)
    for zeroed in (4, 12, 22, 26, 29):
        data = head + bytes(zeroed) + carrier[zeroed:]
        if zeroed <= 12 or not has_room(carrier, zeroed):
            assert b"forged" not in recovered(data)
        disk = disk_with({0: data, CARRIER_ID + 1: chain(CARRIER_ID + 1, 1, b"next")})
        assert ids_of(recover(disk)) == [n for n in range(CARRIER_ID + 2) if n != CARRIER_ID]
        assert b"forged" not in {item.payload for item in dump_topic(disk, PATH) if isinstance(item, Frame)}


def has_room(carrier: bytes, zeroed: int) -> bool:
    """Whether the bytes before some frame inside the carrier could hold real records of all ids between the carrier's and that
    frame's."""
    found = [(at, *frame) for at in range(zeroed, len(carrier)) if (frame := valid_frame(carrier, at)) is not None]
    return any(1 <= msg_id - CARRIER_ID <= at // FRAME_OVERHEAD for at, msg_id, _ in found)


def test_the_limit_that_no_rule_can_lift() -> None:
    """Frames with the next ids behind a destroyed header, and room for what is missing, look byte for byte like real records
    behind a destroyed one, whether the log ends there or junk follows. They are kept, as valid records are (ADR 0003,
    "Consequences"; ADR 0101)."""
    lost = encode_frame(CARRIER_ID, TS_NS, b"", bytes(10))
    real = chain(CARRIER_ID + 1, 3)
    for junk in (b"", b"q" * 54):
        data = b"".join(BEFORE) + bytes(len(lost)) + real + junk
        assert ids_of(recover(disk_with({0: data}))) == [0, 1, 2, 3, 4, 6, 7, 8]


def pattern(name: str, size: int) -> bytes:
    """Return hostile bytes, which contain as many false frame beginnings as possible."""
    if name == "overlapping long claims":
        unit = struct.pack("<IQQHI", size // 2, 7, 0, 0, 1000)
    elif name == "one frame again and again":
        unit = encode_frame(7, TS_NS, b"", b"x" * 20)
    elif name == "zeros with a byte now and then":
        unit = bytes(20) + b"\1"
    else:
        return random.Random(1).randbytes(size)
    return (unit * (size // len(unit) + 1))[:size]


@pytest.mark.parametrize(
    "name", ["overlapping long claims", "one frame again and again", "zeros with a byte now and then", "noise"]
)
def test_hostile_bytes_cost_linear_work(name: str) -> None:
    """Work is counted in function calls, not in seconds: twice the bytes, about twice the calls."""
    import cProfile
    import pstats

    def calls(size: int) -> int:
        profile = cProfile.Profile()
        profile.runcall(Salvage(pattern(name, size)).find_chains, 0, 5)
        return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]

    calls(1000)  # tables are made once
    small, large = calls(1 << 17), calls(1 << 18)
    assert large < 2.5 * small + 1000
