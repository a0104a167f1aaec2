"""``replica.json``: the same values back, and a named error for anything else."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.sim_disk import SimDisk
from toymq_py.errors import DamagedData
from toymq_py.replication.replica_file import ReplicaFile, ReplicaRecord, decode, encode

ROOT = "/data/d"
REPLICA = "0123456789abcdef0123456789abcdef"
LOG = "topics/jobs/00000000000000000000.log"
RECORD = ReplicaRecord("6f6e6c79-0000-4000-8000-746573747321", "g0", REPLICA, 4711, 2**63 + 5, True, True, (LOG,))

texts = st.text(min_size=1, max_size=20)
numbers = st.integers(0, 2**64 - 1)
records = st.builds(
    ReplicaRecord, texts, texts, st.just(REPLICA), numbers, st.none() | numbers, st.booleans(), st.booleans(),
    st.lists(st.just(LOG)).map(tuple),
)


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(random.Random(1))
    disk.mkdir(ROOT)
    disk.sync_dir("/data")
    return disk


@given(records)
def test_what_is_written_is_read(record: ReplicaRecord) -> None:
    assert decode(encode(record)) == record


def test_a_file_without_the_later_fields_has_their_beginnings() -> None:
    found = decode(json.dumps({"version": 1, "cluster": "c", "group": "g0", "replica": REPLICA}).encode())
    assert found == ReplicaRecord("c", "g0", REPLICA)


@pytest.mark.parametrize(("field", "value"), [
    ("version", 2), ("version", None), ("version", True), ("cluster", ""), ("cluster", 1), ("group", None),
    ("replica", "x" * 32), ("replica", REPLICA.upper()), ("replica", None), ("promised", -1), ("promised", 1.0),
    ("promised", True), ("promised", 2**64), ("lease", 5), ("lease", "x"), ("lease", "9" * 5000), ("lease", "-1"),
    ("copying", "yes"), ("distrusted", None), ("damaged", "x"), ("damaged", ["../LOCK"]), ("damaged", [1]),
])  # fmt: skip
def test_an_invalid_field_is_named(field: str, value: object) -> None:
    fields = json.loads(encode(RECORD)) | {field: value}
    with pytest.raises(DamagedData, match=field if field != "replica" else "replica id"):
        decode(json.dumps(fields).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"[" * 100_000, b"\xff"])
def test_what_is_no_object_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedData):
        decode(data)


def test_a_change_outlives_a_power_cut(disk: SimDisk) -> None:
    assert ReplicaFile.load(disk, ROOT) is None
    file = ReplicaFile.create(disk, ROOT, ReplicaRecord("c", "g0", REPLICA))
    assert file.change(promised=5, copying=True) == ReplicaRecord("c", "g0", REPLICA, promised=5, copying=True)
    found = ReplicaFile.load(disk.crash(), ROOT)
    assert found is not None
    assert found.record == file.record


def test_what_was_promised_never_sinks_and_no_change_writes_nothing(disk: SimDisk) -> None:
    file = ReplicaFile.create(disk, ROOT, ReplicaRecord("c", "g0", REPLICA, promised=5))
    disk.trace.clear()
    assert file.change(promised=4).promised == 5
    assert not disk.trace


def test_a_change_that_fails_is_not_told_as_done(disk: SimDisk) -> None:
    file = ReplicaFile.create(disk, ROOT, ReplicaRecord("c", "g0", REPLICA))
    disk.fail("sync", 1, 5)
    with pytest.raises(OSError, match=r"replica\.json"):
        file.change(promised=9)
    assert file.record.promised == 0
