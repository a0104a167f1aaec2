"""``replica.json``: the same values are read back, and anything else is a named error."""

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.sim_disk import SimDisk
from toymq_py.errors import DamagedData, DataDirectoryError
from toymq_py.replication.agreement import ClusterSettings
from toymq_py.replication.replica_file import ReplicaFile, ReplicaRecord, decode, encode, misplaced, record_in

ROOT = "/data/d"
REPLICA = "0123456789abcdef0123456789abcdef"
LOG = "topics/jobs/00000000000000000000.log"
RECORD = ReplicaRecord("6f6e6c79-0000-4000-8000-746573747321", "g0", REPLICA, 4711, 2**63 + 5, True, True, (LOG,), "orders")

texts = st.text(min_size=1, max_size=20)
numbers = st.integers(0, 2**64 - 1)
records = st.builds(
    ReplicaRecord, texts, texts, st.just(REPLICA), numbers, st.none() | numbers, st.booleans(), st.booleans(),
    st.lists(st.just(LOG)).map(tuple), st.just("") | texts,
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
    ("name", ""), ("name", 1),
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


# -- which replica a directory is in a cluster

NEW = "f" * 32
SETTINGS = ClusterSettings("c2", 2, 1)
ADOPTED = ClusterSettings("c2", 2, 1, was="c1", adopted=REPLICA)
MINE = ReplicaRecord("c1", "g0", REPLICA, 4711, 5, False, True, (LOG,))


def test_a_directory_is_what_it_was_in_its_cluster_and_new_without_a_file() -> None:
    assert record_in(SETTINGS, "orders", "g0", None, NEW) == ReplicaRecord("c2", "g0", NEW, name="orders")
    mine = ReplicaRecord("c2", "g0", REPLICA, 4711, name="orders")
    assert record_in(SETTINGS, "orders", "g0", mine, NEW) == mine
    assert record_in(ADOPTED, "orders", "g0", mine, NEW) == mine
    assert record_in(SETTINGS, "orders", "g0", replace(mine, name=""), NEW) == mine, "an older toymq did not write it"


def test_the_adopted_copy_stays_itself_and_forgets_the_epochs_of_before() -> None:
    assert record_in(ADOPTED, "orders", "g0", MINE, NEW) == ReplicaRecord("c2", "g0", REPLICA, name="orders")


@pytest.mark.parametrize("copying", [False, True])
def test_the_other_copies_become_new_replicas(copying: bool) -> None:
    other = ReplicaRecord("c1", "g0", "a" * 32, 4711, copying=copying)
    found = record_in(ADOPTED, "orders", "g0", other, NEW)
    assert found == ReplicaRecord("c2", "g0", NEW, copying=copying, name="orders"), "half of a copy stays half"


@pytest.mark.parametrize(
    ("settings", "record", "why"),
    [
        (SETTINGS, MINE, "belongs to group g0 of a cluster orders of the id c1, and etcd has c2 under this name: look first"),
        (ADOPTED, ReplicaRecord("c0", "g0", REPLICA), "of the id c0"),
        (SETTINGS, ReplicaRecord("c1", "b", REPLICA, name="orders"), "^the directory belongs to group b of the cluster orders"),
        (ADOPTED, ReplicaRecord("c1", "g0", REPLICA, copying=True), "half copied: adopt another"),
    ],
    ids=["another cluster", "a third cluster", "another group", "half copied"],
)
def test_a_directory_of_another_cluster_is_refused(settings: ClusterSettings, record: ReplicaRecord, why: str) -> None:
    with pytest.raises(DataDirectoryError, match=why):
        record_in(settings, "orders", "g0", record, NEW)


@pytest.mark.parametrize(
    ("found", "name", "group", "why"),
    [
        (("b", "orders"), "orders", "b", None),
        (("b", ""), "orders", "b", None),
        (("b", "orders"), "orders", "B", "of the cluster orders, not to group B of the cluster orders: start it with --cluster"
         " orders --group b; a node of group B takes another --data-dir"),
        (("b", "orders"), "solo", "b", "of the cluster orders, not to group b of the cluster solo: start it with --cluster"
         " orders --group b; a node of group b takes another --data-dir"),
        (("b", ""), "orders", "g0", ", not to group g0 of the cluster orders: start it with --group b; a node of group g0 takes"
         " another --data-dir"),
        (("g0", "orders"), "orders", "b", "of the cluster orders, not to group b of the cluster orders: start it with --cluster"
         " orders --group g0 (without --group, if the cluster has no other); a node of group b takes another --data-dir"),
    ],
)  # fmt: skip
def test_a_directory_names_the_group_that_it_belongs_to(
    found: tuple[str, str], name: str, group: str, why: str | None
) -> None:  # fmt: skip
    """Found: the error was that its group had been removed, or two ids and a runbook that ends in ``adopt``."""
    record = ReplicaRecord("c1", found[0], REPLICA, name=found[1])
    said = misplaced(record, name, group)
    assert said == (why and f"the directory belongs to group {found[0]}{'' if why[0] == ',' else ' '}{why}")
