"""A segment of another log is recognized even when its beginning is damaged; damage of a segment of this log costs only the
damaged records. ADR 0222."""

from collections.abc import Callable, Sequence

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from toymq_py.storage.offline.repair import repair
from toymq_py.storage.offline.verify import TopicReport, verify_topic
from toymq_py.storage.segment import segment_name

PAYLOAD = 900  # four records a segment
PUBLIC = f"{DIR}/topics/public"
BASES = (0, 4, 8)
"""Of the segments; the last one is active."""
Hit = Callable[[bytearray], None]


def second(data: bytearray) -> int:
    return 4 + int.from_bytes(data[:4], "little")


def flip(data: bytearray, at: int) -> None:
    data[at] ^= 1


HITS: dict[str, Hit] = {
    "payload": lambda data: flip(data, 200),
    "header": lambda data: data.__setitem__(slice(0, 30), bytes(30)),
    "sector": lambda data: data.__setitem__(slice(0, 512), bytes(512)),
    "second record": lambda data: flip(data, second(data) + 40),
}


def publish(rig: BrokerRig, *topics: str, word: str = "") -> None:
    """Publish eleven records to each topic; the times of different topics alternate."""
    for n in range(11):
        for topic in topics:
            rig.publish(topic, f"{word or topic} {n} ".encode() + b"." * PAYLOAD)
            rig.clock.advance(0.001)


def stopped(rig: BrokerRig) -> BrokerRig:
    rig.disk = rig.disk.kill()
    return rig


def put(rig: BrokerRig, base_id: int, data: bytes, suffix: str = ".log") -> None:
    rig.put(f"topics/public/{base_id:020d}{suffix}", data)


def words(rig: BrokerRig) -> list[bytes]:
    return [payload.rpartition(b" ")[0] for _, _, payload, _ in rig.records("public")]


def report_of(rig: BrokerRig) -> TopicReport:
    return verify_topic(rig.disk, PUBLIC, "public")


def expect_left_out(rig: BrokerRig, base_id: int, data: bytes, word: str = "public") -> None:
    """Check that the file is named and not served, and that repair puts it aside."""
    name = f"{PUBLIC}/{segment_name(base_id)}"
    assert [each.text for each in report_of(rig).findings if each.path == name and "another log" in each.text]
    rig.restart()
    assert words(rig) == [b"%s %d" % (word.encode(), n) for n in range(11) if not base_id <= n < base_id + 4]
    assert rig.disk.read_file(name) == data, "it is left alone"
    (done,) = repair(stopped(rig).disk, DIR, pid=1)
    assert (done.topic, segment_name(base_id) in done.quarantined) == ("public", True)
    assert not report_of(rig).damaged


def told() -> list[tuple[int, str, Sequence[str]]]:
    """Return the places that identify the log: a sidecar, of either log, or the header of the first record."""
    with_sidecar = [(base_id, hit, suffixes) for base_id in BASES[:-1] for hit in HITS for suffixes in (("",), ("", ".idx"))]
    return [*with_sidecar, *((base_id, "payload", ("", "none")) for base_id in BASES)]


@pytest.mark.parametrize(("base_id", "hit", "suffixes"), told(), ids=str)
def test_a_damaged_segment_of_another_topic_is_not_served(base_id: int, hit: str, suffixes: Sequence[str]) -> None:
    """Found: only an intact first record identified the file's topic, so the intact records behind a damaged one were
    served."""
    rig = BrokerRig()
    publish(rig, "payroll", "public")
    stopped(rig)
    theirs = f"{DIR}/topics/payroll/{base_id:020d}"
    data = bytearray(rig.disk.read_file(f"{theirs}.log"))
    HITS[hit](data)
    put(rig, base_id, data)
    if ".idx" in suffixes:
        put(rig, base_id, rig.disk.read_file(f"{theirs}.idx"), ".idx")
    elif "none" in suffixes and base_id < BASES[-1]:
        rig.disk.unlink(f"{PUBLIC}/{base_id:020d}.idx")
    expect_left_out(rig, base_id, data)


@pytest.mark.parametrize("hit", HITS)
@pytest.mark.parametrize("base_id", BASES)
def test_a_damaged_segment_of_an_older_incarnation_is_told_by_its_times_alone(base_id: int, hit: str) -> None:
    rig = BrokerRig()
    publish(rig, "public")
    data = bytearray(rig.disk.read_file(f"{PUBLIC}/{segment_name(base_id)}"))
    rig.delete("public")
    publish(rig, "public", word="newer")
    for name in rig.files("public"):
        if name.endswith(".idx"):
            rig.disk.unlink(f"{PUBLIC}/{name}")
    HITS[hit](data)
    put(stopped(rig), base_id, data)
    expect_left_out(rig, base_id, data, "newer")


@pytest.mark.parametrize("sidecar", [True, False])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("hit", HITS)
@pytest.mark.parametrize("base_id", BASES)
def test_damage_of_its_own_costs_what_it_hit(base_id: int, hit: str, last: bool, sidecar: bool) -> None:
    """The last record, which the sidecar describes, may be damaged, too."""
    rig = BrokerRig()
    publish(rig, "payroll", "public")
    rig.subscribe("public")
    rig.flush("public")
    stopped(rig)
    name = f"{PUBLIC}/{segment_name(base_id)}"
    data = bytearray(rig.disk.read_file(name))
    count = min(4, 11 - base_id)
    if last:
        flip(data, (count - 1) * second(data) + 100)
    HITS[hit](data)
    put(rig, base_id, data)
    if not sidecar and base_id < BASES[-1]:
        rig.disk.unlink(name[:-4] + ".idx")
    report = report_of(rig)
    assert (report.lost, report.records) == (1 + last, 10 - last), report.findings


@pytest.mark.parametrize("size", [512, 4096])
def test_a_sector_of_another_place_over_its_beginning_costs_what_it_hit(size: int) -> None:
    """All records have one length, so the foreign header leads to the end of this log's record: only the checksum there is this
    log's."""
    rig = BrokerRig(segment_bytes=1 << 16)
    for n in range(9):
        for topic in ("payroll", "public"):
            rig.publish(topic, f"{topic:8} {n} ".encode() + b"." * 5000)
            rig.clock.advance(0.001)
    stopped(rig)
    data = rig.disk.read_file(f"{PUBLIC}/{segment_name(0)}")
    put(rig, 0, rig.disk.read_file(f"{DIR}/topics/payroll/{segment_name(0)}")[:size] + data[size:])
    report = report_of(rig)
    assert (report.lost, report.records) == (1, 8), report.findings
