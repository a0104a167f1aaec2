"""Payloads made of valid frames: whatever is damaged around them, nothing forged becomes a record (ADR 0003)."""

import random
import struct
from collections.abc import Callable, Iterator

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


# -- the header is there, but for one fault, and the end of the record and those behind it are lost


def kept_of(records: list[bytes], hit: Callable[[bytearray, int, int], None]) -> tuple[set[int], bytes]:
    """Damage a log of ``BEFORE``, these records and twenty more. ``hit`` gets the data, and where the first of the records
    begins and ends. Returns: the ids of the kept records, and their payloads."""
    head = b"".join(BEFORE)
    first_id = CARRIER_ID + len(records)
    data = bytearray(head + b"".join(records) + b"".join(some_frames(20, seed=3, first_id=first_id)))
    hit(data, len(head), len(head) + len(records[0]))
    found = [item for item in dump_topic(disk_with({0: bytes(data)}), PATH) if isinstance(item, Frame)]
    log = recover(disk_with({0: bytes(data)}))
    assert set(ids_of(log)) == {item.msg_id for item in found}
    return {item.msg_id for item in found}, b"".join(item.payload for item in found)


FOLLOWERS = some_frames(3, seed=4, first_id=CARRIER_ID + 1)
LOST = sum(map(len, FOLLOWERS))
KEEPS = {*range(CARRIER_ID), *range(CARRIER_ID + 4, CARRIER_ID + 24)}


@pytest.mark.parametrize("offset", range(31))
def test_a_flipped_bit_of_a_header_frees_no_frame_of_its_payload(offset: int) -> None:
    """A blind attack: one bit flipped in the length of a record, its end and the next three records zeroed, and the frame in
    its payload was delivered as one of these."""
    inner = b"A" * 100 + chain(CARRIER_ID + 2, 1) + b"B" * 3000
    carrier = encode_frame(CARRIER_ID, TS_NS, b"outer", inner)
    for bit in range(8):

        def hit(data: bytearray, start: int, end: int, mask: int = 1 << bit) -> None:
            data[start + offset] ^= mask
            data[end - 10 : end + LOST] = bytes(10 + LOST)

        ids, payloads = kept_of([carrier, *FOLLOWERS], hit)
        assert (ids, b"forged" in payloads) == (KEEPS, False), f"bit {bit}"


@pytest.mark.parametrize(
    "block",
    [
        encode_attributes(sequence=7),
        encode_attributes(deliver_at_ns=1, expires_at_ns=2, sequence=7),
        encode_attributes(headers=b"traceparent: 00-" + b"a" * 50 + b"\n"),
        encode_attributes(expires_at_ns=2, headers=b"A: b\n", sequence=7),
    ],
    ids=["sequence", "numbers", "headers", "all"],
)
@pytest.mark.parametrize("noise", [False, True], ids=["zeros", "noise"])
@pytest.mark.parametrize("before", [0, 13, 40, 200])
def test_attributes_that_are_lost_free_no_frame_of_the_payload(block: bytes, noise: bool, before: int) -> None:
    """A blind attack, seed 3046: one zeroed range of 7 KB over the end of a record and those behind it. Lost attributes did not
    fill the bytes that the header has for them, so it told nothing, and a frame in its payload became record 447."""
    inner = b"A" * 60 + chain(CARRIER_ID + 3, 1) + 2 * chain(CARRIER_ID + 2, 1) + b"B" * 300
    carrier = encode_frame(CARRIER_ID, TS_NS, b"key", inner, block)

    def hit(data: bytearray, start: int, end: int) -> None:
        first = max(end - 4 - len(block) - before, end - 4 - len(block) - 300)
        size = end + LOST - first
        data[first : end + LOST] = random.Random(1).randbytes(size) if noise else bytes(size)

    ids, payloads = kept_of([carrier, *FOLLOWERS], hit)
    assert (ids, b"forged" in payloads) == (KEEPS, False)


def test_a_header_that_is_whole_behind_other_damage_frees_no_frame_of_its_payload() -> None:
    """A blind attack, seed 3049: a record is found by the search behind an earlier break, and not at the break itself."""
    inner = b"A" * 60 + chain(CARRIER_ID + 2, 1) + b"B" * 300
    carrier = encode_frame(CARRIER_ID, TS_NS, b"", inner, encode_attributes(sequence=7))
    first = len(BEFORE[0])

    def hit(data: bytearray, _: int, end: int) -> None:
        data[first : first + 26] = b"\xff" * 26
        data[end - 17 : end + LOST] = bytes(17 + LOST)

    ids, payloads = kept_of([carrier, *FOLLOWERS], hit)
    assert (ids, b"forged" in payloads) == (KEEPS - {1}, False)


def test_where_two_ends_are_a_bit_apart_what_stands_between_them_stays_undecided() -> None:
    """The length and the payload length of a record contradict each other by one bit, and either may be the damaged one. By one
    the record ends before valid frames, which may be acknowledged records; by the other they are its payload. They are kept
    (ADR 0003, 0289)."""
    real = chain(CARRIER_ID + 2, 3, b"real")
    short = encode_frame(CARRIER_ID, TS_NS, b"", b"p" * 200)
    lost = encode_frame(CARRIER_ID + 1, TS_NS, b"", b"x" * 30)
    behind = b"q" * (1024 - len(lost) - len(real))
    noise = b"\x99" * len(lost)
    long = encode_frame(CARRIER_ID, TS_NS, b"", short[26:] + noise + real + behind[4:])
    a_length_was_hit, a_payload_length_was_hit = bytearray(short + noise + real + behind), bytearray(long)
    a_length_was_hit[1] ^= 4
    a_payload_length_was_hit[23] ^= 4
    same = min(len(long), len(short) + len(noise) + len(real))
    assert a_length_was_hit[:26] == a_payload_length_was_hit[:26]
    assert a_length_was_hit[30:same] == a_payload_length_was_hit[30:same]
    for record in (a_length_was_hit, a_payload_length_was_hit):
        record[-4:] = b"\x99" * 4
        log = recover(disk_with({0: b"".join(BEFORE) + bytes(record)}))
        assert ids_of(log) == [0, 1, 2, 3, 4, 7, 8, 9]


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
