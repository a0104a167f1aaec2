"""The parser of operations: any split of the bytes gives the same operations; any bytes give an operation or a named error,
within limits."""

import itertools
import tracemalloc
from struct import pack
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toymq_py.errors import BadOperation
from toymq_py.replication import operations as ops
from toymq_py.replication.operations import Operation, OperationReader, encode

U64 = 2**64 - 1
LOG = "topics/t/00000000000000000000.log"

names = st.sampled_from(["t", "orders.dlq", "_", "A" * 196, "a..b"])
directories = st.one_of(names.map("topics/{}".format), st.integers(0, 10**20 - 1).map("topics/.deleted-{}".format))
numbers = st.integers(0, 10**20 - 1).map("{:020d}".format)
file_names = st.one_of(
    st.builds("{}{}".format, numbers, st.sampled_from([".log", ".idx", ".log.foreign"])),
    st.builds("{}-{}.removed".format, numbers, numbers),
    st.sampled_from(["offsets.json", "offsets.json.prev", "topic.json", "segments.json", "has-offsets"]),
)
files = st.one_of(st.builds("{}/{}".format, directories, file_names), st.just("webhooks.json"))
seqs = st.integers(0, U64)
data = st.binary(max_size=300)
positions = st.integers(0, 2**62)
graves = st.integers(0, 99).map("topics/.deleted-{}".format)
renames = st.one_of(
    st.builds(lambda s, d, a, b: ops.Rename(s, f"{d}/{a}", f"{d}/{b}"), seqs, directories, file_names, file_names),
    st.builds(ops.Rename, seqs, directories, graves),
)
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(ops.Write, seqs, files, positions, data),
    st.builds(ops.Truncate, seqs, files, positions),
    st.builds(ops.Create, seqs, files),
    st.builds(ops.Replace, seqs, files, data),
    st.builds(ops.Mkdir, seqs, directories),
    st.builds(ops.Rmdir, seqs, graves),
    st.builds(ops.Unlink, seqs, files),
    renames,
    st.builds(ops.Sync, seqs, files),
    st.builds(ops.SyncDir, seqs, st.one_of(directories, st.sampled_from(["", "topics"]))),
    st.builds(ops.Copy, st.just(0), files, positions, data),
    st.builds(ops.Copied, seqs),
    st.builds(ops.Beat, seqs, st.integers(0, U64), st.integers(0, U64)),
    st.builds(ops.Bye, seqs),
    st.builds(ops.Plan, st.just(0), data),
)


def read(*pieces: bytes) -> tuple[list[Operation], str | None]:
    """Return the operations that a follower reads, and the error at which it ends."""
    reader, found = OperationReader(), []
    for piece in pieces:
        reader.receive(piece)
        try:
            while (operation := reader.next_operation()) is not None:
                found.append(operation)
        except BadOperation as error:
            return found, str(error)
    return found, None


def frame(code: int, path: bytes = b"", *, seq: int = 1, offset: int = 0, data: bytes = b"") -> bytes:
    """Return a frame with a valid checksum, whatever it contains."""
    body = pack("<BQH", code, seq, len(path)) + path + pack("<Q", offset) + data
    head = pack("<I", len(body) + 4) + body
    return head + pack("<I", crc32(head))


@given(st.lists(operations, max_size=5), st.lists(st.integers(0, 2000), max_size=8))
def test_what_is_sent_is_read_however_it_is_split(sent: list[Operation], cuts: list[int]) -> None:
    stream = b"".join(b"".join(encode(operation)) for operation in sent)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assert read(*(stream[a:b] for a, b in itertools.pairwise(edges))) == (sent, None)
    assert read(*(stream[at : at + 1] for at in range(len(stream)))) == (sent, None)


@given(st.lists(operations, min_size=1, max_size=3), st.data())
def test_a_changed_bit_ends_the_stream_there(sent: list[Operation], draw: st.DataObject) -> None:
    stream = bytearray(b"".join(b"".join(encode(operation)) for operation in sent))
    bit = draw.draw(st.integers(0, 8 * len(stream) - 1))
    stream[bit // 8] ^= 1 << bit % 8
    found, _ = read(bytes(stream))
    assert len(found) < len(sent)
    assert found == sent[: len(found)]


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_any_bytes_give_operations_or_a_named_error_whatever_the_split(pieces: list[bytes]) -> None:
    assert read(*pieces) == read(b"".join(pieces))


@pytest.mark.parametrize(
    ("hostile", "why"),
    [
        (frame(0), "unknown operation 0"),
        (frame(16), "unknown operation 16"),
        (frame(15, b"topics"), "where there is none"),
        (frame(15, seq=3), "PLAN has the number 3 and should have none"),
        (pack("<IB", 1 << 26, 15), "PLAN has a length of 67108864 bytes"),
        (frame(1, b"../../etc/passwd", data=b"x"), "is not a file of the layout"),
        (frame(1, b"topics/../00000000000000000000.log", data=b"x"), "is not a file of the layout"),
        (frame(1, b"topics/t/../../LOCK", data=b"x"), "is not a file of the layout"),
        (frame(1, b"/topics/t/offsets.json", data=b"x"), "is not a file of the layout"),
        (frame(1, b"LOCK", data=b"x"), "is not a file of the layout"),
        (frame(4, b"replica.json", data=b"{}"), "is not a file of the layout"),
        (frame(4, b"topics/t/offsets.json\n"), "is not a file of the layout"),
        (frame(4, "topics/t/0000000000000000000\u0664.log".encode()), "is not ASCII"),
        (frame(1, LOG.encode(), offset=2**63, data=b"x"), "exceeds the size of a file"),
        (frame(2, LOG.encode(), offset=2**63), "exceeds that of a file"),
        (frame(3, LOG.encode(), data=pack("<I", 0o666)), "mode b6010000"),
        (frame(3, LOG.encode()), "is not that of a file of the layout"),
        (frame(5, b""), "is not a directory that a leader makes"),
        (frame(5, b"spool"), "is not a directory that a leader makes"),
        (frame(6, b"topics/t"), "is not a deleted topic's directory"),
        (frame(6, b"topics"), "is not a deleted topic's directory"),
        (frame(7, b"topics/t"), "is not a file of the layout"),
        (frame(8, LOG.encode(), data=b"/etc/passwd"), "no rename of the layout"),
        (frame(8, LOG.encode(), data=b"topics/u/00000000000000000000.log"), "no rename of the layout"),
        (frame(8, b"topics/t", data=b"topics/u"), "no rename of the layout"),
        (frame(8, b"topics", data=b"topics/.deleted-1"), "no rename of the layout"),
        (frame(8, LOG.encode(), data=b"\xff"), "is not ASCII"),
        (frame(9, LOG.encode(), offset=7), "has the offset 7 and should have none"),
        (frame(9, LOG.encode(), data=b"x"), "path of 33 bytes, which does not fit its length"),
        (frame(10, b"spool"), "is not a directory of the layout"),
        (frame(11, LOG.encode(), seq=3), "COPY has the number 3 and should have none"),
        (frame(12, b"topics"), "where there is none"),
        (frame(13), "BEAT has 0 bytes and should have 8"),
        (frame(14, b"topics"), "where there is none"),
        (frame(1, LOG.encode(), data=b"x")[:-1] + b"?", "WRITE fails its checksum"),
        (pack("<IB", 2**32 - 1, 4), "REPLACE has a length of 4294967295 bytes"),
        (pack("<IB", 2 * ops.PIECE_BYTES, 1), "WRITE has a length of 2097152 bytes"),
        (pack("<IB", 22, 9), "SYNC has a length of 22 bytes"),
        (frame(14)[:13] + pack("<H", 9000) + frame(14)[15:], "BYE fails its checksum"),
    ],
)
def test_a_hostile_frame_is_refused_by_name_and_for_good(hostile: bytes, why: str) -> None:
    reader = OperationReader()
    reader.receive(b"".join(encode(ops.Sync(1, LOG))) + hostile)
    assert reader.next_operation() == ops.Sync(1, LOG)
    for _ in range(2):
        with pytest.raises(BadOperation, match=why.replace("(", r"\(")):
            reader.next_operation()
        reader.receive(b"".join(encode(ops.Sync(2, LOG))))


def test_a_path_that_is_longer_than_its_frame_is_refused() -> None:
    body = pack("<BQH", 9, 1, 9000) + LOG.encode() + pack("<Q", 0)
    head = pack("<I", len(body) + 4) + body
    assert read(head + pack("<I", crc32(head)))[1] == "SYNC has a path of 9000 bytes, which does not fit its length"


def test_a_length_is_refused_before_it_costs_memory() -> None:
    """Where a kind allows a large length, only the bytes that have arrived are held."""
    reader = OperationReader()
    tracemalloc.start()
    try:
        reader.receive(pack("<IB", ops.REPLACE_BYTES_MAX, 4))
        assert reader.next_operation() is None
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_the_data_of_a_frame_is_not_copied() -> None:
    piece = memoryview(bytes(100))[10:90]
    assert encode(ops.Write(1, LOG, 0, piece))[1] is piece
