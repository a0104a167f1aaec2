"""Files of an older incarnation, or of another broker's topic of the same name, put over those of a topic. ADR 0281."""

import random
import re
from collections.abc import Callable
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.changed_segments import look, overwrite, rename_over
from tests.support.sim_disk import SimDisk
from toymq_py.storage import checked_json, incarnation, offsets, segment_heads, topic_settings
from toymq_py.storage.fs import write_synced
from toymq_py.storage.offline.backup import back_up
from toymq_py.storage.offline.dump import dump_topic
from toymq_py.storage.offline.repair import repair
from toymq_py.storage.offline.verify import TopicReport, verify_topic
from toymq_py.storage.record import Frame
from toymq_py.storage.segment import segment_name

PATH = f"{DIR}/topics/t"
HEADS, SETTINGS, OFFSETS, PREVIOUS = "segments.json", "topic.json", "offsets.json", "offsets.json.prev"
SEGMENTS = [segment_name(base_id) for base_id in (0, 4, 8)]
COUNT = 10
Files = dict[str, bytes]


@cache
def files_of(word: bytes, acked: int, settings: str) -> Files:
    """The files of a topic of ten messages in three segments. Consumer c has acked the first ones; ``settings``: as "a=1", or
    empty for a topic without ``topic.json``."""
    rig = BrokerRig()
    if word == b"old":
        rig.clock.advance(1)
    if settings:
        assert rig.change("create", "t", **dict([settings.split("=")])) == "OK"
    for n in range(COUNT):
        rig.publish("t", b"%b %d " % (word, n) + b"." * 900, key=b"k%d" % n)
        rig.clock.advance(0.001)
    subscription = rig.subscribe("t")
    rig.take(subscription)
    for n in range(acked):
        rig.ack("t", n, n)
    subscription.close()
    rig.flush("t")
    rig.broker.close()
    return {name: rig.disk.read_file(f"{PATH}/{name}") for name in rig.files("t") if not name.endswith(".idx")}


def old(settings: str = "max_attempts=7") -> Files:
    return files_of(b"old", 6, settings)


def new(settings: str = "max_attempts=5") -> Files:
    return files_of(b"new", 2, settings)


class Mixed(BrokerRig):
    """A broker on the files of the topic ``new``, with others put over some of them."""

    def __init__(self, *others: Files, settings: str = "max_attempts=5") -> None:
        super().__init__(disk=SimDisk(random.Random(7)))
        self.publish("t", b"x")
        self.delete("t")
        self.broker.close()
        self.disk.mkdir(PATH)
        self.disk.sync_dir(f"{DIR}/topics")
        for name, data in {name: data for each in (new(settings), *others) for name, data in each.items()}.items():
            write_synced(self.disk, f"{PATH}/{name}", data)
        self.disk.sync_dir(PATH)

    def report(self) -> TopicReport:
        return verify_topic(self.disk, PATH, "t")

    def words(self) -> list[bytes]:
        return [payload.split(b" .")[0] for _, _, payload, _ in self.records("t")]

    def described(self) -> dict[str, Any]:
        return self.broker.topic("t").describe()


def some(files: Files, *names: str) -> Files:
    return {name: files[name] for name in names if name in files}


def genuine(*but: int) -> list[bytes]:
    return [b"new %d" % n for n in range(COUNT) if n not in but]


@pytest.mark.parametrize("settings", ["max_attempts=5", ""])
def test_a_segments_json_of_another_incarnation_loses_against_the_log(settings: str, caplog: pytest.LogCaptureFixture) -> None:
    """All records were "of another log", stored keys were stored again, and ids given out again."""
    rig = Mixed(some(old(), HEADS), settings=settings)
    report = rig.report()
    assert (report.records, report.lost, report.next_id) == (COUNT, 0, COUNT)
    assert [f"{HEADS} is of another incarnation" in finding.text for finding in report.findings] == [True]
    assert sum(isinstance(each, Frame) for each in dump_topic(rig.disk, PATH)) == COUNT
    rig.restart()
    assert (rig.described()["state"], rig.described()["lost"], rig.words()) == ("degraded", 0, genuine())
    assert "is of another incarnation" in caplog.text
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("t"))] == [*range(2, COUNT)], "its offsets count"
    again = rig.publish("t", b"again", key=b"k3")[0]
    assert (again.duplicate, again.first_id) == (True, 3)
    rig.publish("t", b"more .")
    rig.reopen(power_cut=True)
    assert (rig.described()["state"], rig.words()) == ("ok", [*genuine(), b"more"])
    assert not rig.report().findings


def test_repair_puts_such_a_segments_json_aside_and_nothing_else() -> None:
    rig = Mixed(some(old(), HEADS))
    (done,) = repair(rig.disk, DIR, pid=1)
    assert (done.quarantined, done.lost) == ([HEADS], [])
    assert not rig.report().findings
    rig.restart()
    assert (rig.described()["state"], rig.words()) == ("ok", genuine())


@pytest.mark.parametrize("name", SEGMENTS)
def test_a_segment_that_came_with_its_segments_json_is_the_one_that_is_refused(name: str) -> None:
    """It was served, and the segments of the topic were refused."""
    rig = Mixed(some(old(), HEADS, name))
    gone = [n for n in range(COUNT) if int(name[:20]) <= n < int(name[:20]) + 4]
    assert (rig.report().records, rig.report().lost) == (COUNT - len(gone), len(gone))
    rig.restart()
    assert (rig.words(), rig.described()["state"]) == (genuine(*gone), "degraded")
    assert rig.publish("t", b"more .")[0].first_id == COUNT
    rig.reopen()
    assert rig.words() == [*genuine(*gone), b"more"], "also behind the next segments.json"
    rig.disk = rig.disk.kill()
    (done,) = repair(rig.disk, DIR, pid=1)
    assert done.quarantined == [name]
    rig.restart()
    assert (rig.words(), rig.described()["state"]) == ([*genuine(*gone), b"more"], "ok")


@pytest.mark.parametrize("settings", ["max_attempts=5", ""])
def test_a_topic_json_of_another_incarnation_removes_nothing(settings: str) -> None:
    """It was obeyed, with state ok: its limits removed messages that were not acked."""
    rig = Mixed(some(old("retain_max_bytes=1000"), SETTINGS), settings=settings)
    assert ["settings of another incarnation" in finding.text for finding in rig.report().findings] == [True]
    rig.restart()
    rig.advance(60)
    assert (rig.words(), rig.described()["state"]) == (genuine(), "degraded")
    assert "say all settings anew with CONFIG" in rig.described()["settings_problem"]
    assert rig.change("configure", "t", max_attempts="5") == "OK"
    rig.reopen(power_cut=True)
    assert (rig.described()["state"], rig.described()["settings"]["max_attempts"]) == ("ok", 5)
    assert topic_settings.load(rig.disk, PATH).incarnation == offsets.load(rig.disk, PATH).state.incarnation


def test_repair_puts_such_a_topic_json_aside() -> None:
    rig = Mixed(some(old(), SETTINGS))
    (done,) = repair(rig.disk, DIR, pid=1)
    assert done.quarantined == [SETTINGS]
    assert not rig.report().findings


def test_a_directory_of_another_topic_but_its_topic_json_is_not_ok() -> None:
    """It was served with state ok, by settings of another topic."""
    rig = Mixed({name: data for name, data in old().items() if name != SETTINGS})
    assert rig.report().damaged
    rig.restart()
    assert rig.described()["state"] == "degraded"
    assert rig.described()["settings"] == {}


@pytest.mark.parametrize("names", [(HEADS,), (HEADS, SETTINGS, OFFSETS, PREVIOUS)])
@pytest.mark.parametrize("power_cut", [False, True])
def test_no_id_of_a_refused_segment_is_given_out_again(names: tuple[str, ...], power_cut: bool) -> None:
    """Nothing tells whether the log or these files are the others. The next id was that behind the foreign heads."""
    rig = Mixed(some(old(), *names), settings="" if len(names) == 1 else "max_attempts=5")
    if len(names) == 1:
        for name in (OFFSETS, PREVIOUS, offsets.MARK_NAME):
            rig.disk.unlink(f"{PATH}/{name}")
    heads = segment_heads.list_segment_files(rig.disk, PATH).heads
    segment_heads.store(rig.disk, PATH, {0: heads[0]}, segment_heads.log_incarnation(rig.disk, PATH))
    for name in SEGMENTS[1:]:
        rig.disk.unlink(f"{PATH}/{name}")
    if len(names) > 1:
        state = offsets.load(rig.disk, PATH).state
        stored = offsets.OffsetsState(0, 1, {}, incarnation=state.incarnation)
        for name in (OFFSETS, PREVIOUS):
            rig.put(f"topics/t/{name}", offsets.encode(stored, "t"))
    assert (rig.report().next_id, rig.report().records) == (4, 0)
    rig.restart()
    assert rig.publish("t", b"more .")[0].first_id == 4
    rig.reopen(power_cut=power_cut)
    assert rig.words() == [b"more"]


@pytest.mark.parametrize("with_heads", [False, True])
def test_segments_that_changed_places_keep_their_ids(with_heads: bool) -> None:
    """The next id was 1: each file begins with another record than its name says, and counted for nothing."""
    rig = Mixed(dict(zip(SEGMENTS, [new("")[name] for name in SEGMENTS[1:] + SEGMENTS[:1]], strict=True)), settings="")
    for name in (OFFSETS, PREVIOUS, offsets.MARK_NAME, *([] if with_heads else [HEADS])):
        rig.disk.unlink(f"{PATH}/{name}")
    assert (rig.report().next_id, rig.report().lost) == (COUNT, COUNT)
    rig.restart()
    assert rig.publish("t", b"more .")[0].first_id == COUNT


@pytest.mark.parametrize("names", [names for n in (1, 2, 3) for names in combinations((HEADS, SETTINGS, OFFSETS, PREVIOUS), n)])
@pytest.mark.parametrize("with_segments", [(), (0,), (2,), (0, 1), (0, 1, 2)])
def test_all_tools_agree_on_each_mixture(names: tuple[str, ...], with_segments: tuple[int, ...]) -> None:
    rig = Mixed(some(old(), *names, *(SEGMENTS[n] for n in with_segments)))
    untouched = {n for n in range(COUNT) if n // 4 not in with_segments}
    report = rig.report()
    seen = [each.payload.split(b" .")[0] for each in dump_topic(rig.disk, PATH) if isinstance(each, Frame)]
    back_up(rig.disk, DIR, "/backup", pid=1, wall_ns=1)
    copied = [each.payload.split(b" .")[0] for each in dump_topic(rig.disk, "/backup/topics/t") if isinstance(each, Frame)]
    rig.restart()
    described = rig.described()
    assert (described["state"] == "ok", rig.words(), described["lost"]) == (not report.damaged, seen, report.lost)
    assert copied == seen
    all_but_previous = len(with_segments) == 3 and {HEADS, SETTINGS, OFFSETS} <= {*names}
    is_ok = all_but_previous or (names == (PREVIOUS,) and not with_segments)
    assert (described["state"] == "ok") is is_ok, "the previous generation is not read"
    known_end = not (with_segments == (2,) and HEADS not in names and OFFSETS in names)  # else the end is overwritten
    assert rig.publish("t", b"more .")[0].first_id >= (COUNT if known_end else COUNT - 1)
    if len({*names} - {PREVIOUS}) < 2 and len(with_segments) < 2:
        assert {*rig.words()} >= {b"new %d" % n for n in untouched}, "one bad file harms only itself"
    if SETTINGS in names and not with_segments and not {HEADS, OFFSETS} <= {*names}:
        assert described["settings"] == {}, "settings of another incarnation are not in force"
    rig.disk = rig.disk.kill()
    [*repair(rig.disk, DIR, pid=1)]
    assert not rig.report().damaged
    rig.restart()
    assert rig.described()["state"] == "ok"


# -- the rule


def words_in(**named: str | None) -> SimDisk:
    """A directory whose offsets, previous offsets and settings name these incarnations, one letter each."""
    disk = SimDisk(random.Random(7))
    for path in (DIR, f"{DIR}/topics", PATH):
        disk.mkdir(path)
    for (name, kind), word in zip((*incarnation.OFFSETS, *incarnation.SETTINGS), named.values(), strict=True):
        if word is not None:
            file = disk.open(f"{PATH}/{name}", create=True)
            file.pwrite(checked_json.encode(kind, {"topic": "t", "incarnation": word * 16}), 0)
    return disk


@pytest.mark.parametrize(
    ("segments", "offsets_", "previous", "settings", "balance", "expected"),
    [
        ("a", "b", "b", "b", 1, "a"),  # the log is its own truth
        ("a", "b", "b", "b", 0, "b"),
        ("a", "b", "b", "b", -1, "b"),
        ("a", "b", "b", None, -1, "b"),
        ("a", "b", "b", None, 0, "a"),
        ("a", None, None, "b", -1, "b"),
        ("a", None, None, "b", 0, "a"),
        ("a", "b", "a", "b", -1, "b"),
        ("a", "b", "a", "b", 0, "b"),
        ("a", "a", "a", "b", -1, "a"),
        ("a", "b", "a", None, -1, "b"),
        ("a", "b", "b", "a", -1, "b"),  # heads that the log contradicts have no say
        ("a", "b", "b", "a", 0, "a"),
        ("a", "b", "b", "c", -1, "b"),
        ("a", "b", "b", "c", 0, "a"),
        (None, "b", "b", "c", 0, "b"),
        (None, "b", "c", "c", 0, "b"),
        (None, None, "c", "c", 0, "c"),
        (None, None, "b", "c", 0, "b"),
    ],
)
def test_the_rule(
    segments: str | None, offsets_: str | None, previous: str | None, settings: str | None, balance: int, expected: str
) -> None:
    disk = words_in(offsets=offsets_, previous=previous, settings=settings)
    of_segments = None if segments is None else segments * 16
    assert incarnation.decide(disk, PATH, of_segments, lambda: balance) == expected * 16


@pytest.mark.parametrize("present", list(product([False, True], repeat=4)))
def test_files_that_agree_are_not_judged_by_the_log(present: tuple[bool, ...]) -> None:
    of_segments, *others = ("a" if there else None for there in present)
    disk = words_in(**dict(zip("opt", others, strict=True)))
    expected = "a" * 16 if any(present) else None

    def balance() -> int:
        raise AssertionError("no segment is read")

    assert incarnation.decide(disk, PATH, of_segments and of_segments * 16, balance) == expected


def test_a_damaged_file_and_one_of_another_topic_have_no_say() -> None:
    disk = words_in(offsets="b", previous="b", settings="a")
    for name, kind in incarnation.OFFSETS:
        data = checked_json.encode(kind, {"topic": "another", "incarnation": "b" * 16})
        file = disk.open(f"{PATH}/{name}")
        file.truncate(0)
        file.pwrite(data if name == OFFSETS else data.replace(b"another", b"t"), 0)
    assert incarnation.decide(disk, PATH, None, lambda: 0) == "a" * 16


@pytest.mark.parametrize("change", [overwrite, rename_over])
@pytest.mark.parametrize("idle", [True, False], ids=["idle", "published-to"])
def test_a_running_broker_keeps_the_heads_that_it_knows(
    change: Callable[[BrokerRig, str, bytes], None], idle: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Sealed segments of another incarnation with their segments.json, put over those of a running broker: it believed the
    file, served both logs as one with state ``ok``, and gave OK to publishes that the next start refused."""
    rig = Mixed()
    rig.restart()
    if not idle:
        rig.publish("t", b"more .")
    look(rig)
    for name in (*SEGMENTS[:2], HEADS):
        change(rig, f"{PATH}/{name}", old()[name])
    look(rig)
    expected = [*genuine(*range(8)), *([] if idle else [b"more"])]
    assert (rig.described()["state"], rig.described()["lost"], rig.words()) == ("degraded", 8, expected)
    assert f"{HEADS} was changed or removed below the running broker" in caplog.text
    assert rig.publish("t", b"late .")[0].error is None
    rig.reopen(power_cut=True)
    assert (rig.described()["state"], rig.words()) == ("degraded", [*expected, b"late"])


@pytest.mark.parametrize("name", [HEADS, SEGMENTS[2]])
def test_no_publish_gets_ok_when_all_segments_are_another_logs(name: str) -> None:
    rig = Mixed()
    rig.restart()
    look(rig)
    for each in sorted({*SEGMENTS, HEADS}, key=lambda each: each == name):
        overwrite(rig, f"{PATH}/{each}", old()[each])
    look(rig)
    assert (rig.described()["state"], rig.words()) == ("failed", [])
    assert "below the running broker" in str(rig.publish("t", b"late .")[0].error)


def test_a_topic_is_renamed_as_the_documentation_says() -> None:
    """It did not name the files of the offsets, so that the topic stayed degraded for good."""
    text = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
    steps = re.search(r"To rename a topic, .* and remove (.*?) in it\W", text)
    assert steps is not None
    rig = Mixed()
    for name in set(re.findall(r"`([^`]+)`", steps[1])) & set(rig.files("t")):
        rig.disk.unlink(f"{PATH}/{name}")
    rig.disk.rename(PATH, f"{DIR}/topics/renamed")
    assert not verify_topic(rig.disk, f"{DIR}/topics/renamed", "renamed").findings
    rig.restart()
    assert rig.change("configure", "renamed", max_attempts="5") == "OK"
    assert rig.publish("renamed", b"again", key=b"k3")[0].duplicate
    rig.loop.drain()
    rig.broker.close()
    rig.restart()
    found = rig.broker.topic("renamed").describe()
    assert (found["state"], found["messages"], found["settings"]["max_attempts"]) == ("ok", COUNT, 5)


def test_settings_that_came_with_a_segments_json_which_most_segments_contradict_are_not_obeyed() -> None:
    """All JSON files of elsewhere: the segments were refused, and the settings that came with them obeyed. They removed what
    was published then."""
    rig = Mixed(some(old("retain_max_age=1000"), HEADS, SETTINGS, OFFSETS, PREVIOUS))
    own = files_of(b"new", 2, "max_attempts=5")
    assert any(finding.text.startswith(f"{HEADS} names the same") for finding in rig.report().findings)
    rig.restart()
    assert (rig.described()["state"], rig.words()) == ("degraded", [])
    for _ in range(2):
        assert "most segments are another log's" in rig.described()["settings_problem"]
        rig.publish("t", b"more .")
        rig.advance(3600)
        rig.publish("t", b"more .")
        rig.loop.drain()
        rig.broker.close()
        rig.restart()
    assert rig.words() == [b"more"] * 4
    rig.broker.close()
    for name in (HEADS, SETTINGS, OFFSETS, PREVIOUS):
        write_synced(rig.disk, f"{PATH}/{name}", own[name])
    rig.restart()
    assert "settings_problem" not in rig.described()
    assert (rig.described()["settings"]["max_attempts"], rig.words()[:COUNT]) == (5, genuine())


def test_repair_puts_such_settings_aside_with_the_segments() -> None:
    rig = Mixed(some(old("max_attempts=7"), HEADS, SETTINGS, OFFSETS, PREVIOUS))
    (done,) = repair(rig.disk, DIR, pid=1)
    assert {HEADS, SETTINGS} & set(done.quarantined) == {SETTINGS}
    assert not rig.report().findings
    rig.restart()
    assert rig.described()["state"] == "ok"
