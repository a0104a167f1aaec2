"""Copies that another log of the same name would replace. ADR 0091."""

import pytest

from tests.support.backups import BACK, TO, broker, contents, do_backup, makes_anew
from tests.support.broker_rig import DIR, BrokerRig
from tests.support.directory_copies import copy_tree
from tests.support.sim_disk import SimDisk
from toymq_py.errors import DataDirectoryError
from toymq_py.storage.fs import remove_tree
from toymq_py.storage.offline.restore import restore

EARLIER = f"{TO}/earlier/20231114T221320Z"


def goes_back(rig: BrokerRig, state: str) -> None:
    """Replace the directory with an older state of itself."""
    rig.broker.close()
    remove_tree(rig.disk, f"{DIR}/topics")
    copy_tree(rig.disk, state, f"{DIR}/topics")
    rig.clock.advance(0.001)
    rig.restart()


def from_backup(disk: SimDisk, backup: str, topic: str, to: str) -> dict[int, bytes]:
    restore(disk, backup, to, pid=3)
    return contents(BrokerRig(disk=disk, data_dir=to), topic)


def test_the_copy_of_a_topic_that_was_lost_and_made_anew_is_put_aside() -> None:
    """Found: a publisher re-created the lost topic within the hour, and the next backup silently replaced its whole copy."""
    rig = broker()
    do_backup(rig)
    before = contents(rig, "a")
    makes_anew(rig)
    for _ in range(2):
        report = do_backup(rig)
        assert report.superseded == [(topic, EARLIER) for topic in ("a", "b", "c")]
        assert not report.damaged
    assert from_backup(rig.disk, TO, "a", BACK) == contents(rig, "a")
    assert from_backup(rig.disk, EARLIER, "a", "/data/earlier") == before
    assert do_backup(rig, prune=True).superseded == []
    assert not rig.disk.exists(f"{TO}/earlier")


@pytest.mark.parametrize("published", [0, 1, 30])
def test_a_topic_that_was_lost_and_has_few_records_replaces_no_copy(published: int) -> None:
    rig = broker()
    do_backup(rig)
    before = contents(rig, "a")
    rig.broker.close()
    remove_tree(rig.disk, f"{DIR}/topics/a")
    rig.clock.advance(0.001)
    rig.restart()
    rig.subscribe("a", "other")
    for n in range(published):
        rig.publish("a", b"anew %d" % n)
    rig.flush("a")
    do_backup(rig)
    places = [EARLIER] if rig.disk.exists(EARLIER) else [TO]
    assert from_backup(rig.disk, places[0], "a", BACK) == before
    if published:
        assert places == [EARLIER]
        assert from_backup(rig.disk, TO, "a", "/data/now") == contents(rig, "a")


@pytest.mark.parametrize("later", [1, 40])
@pytest.mark.parametrize("published", [0, 1, 40])
def test_an_older_state_of_the_directory_is_not_mixed_with_a_newer_backup(published: int, later: int) -> None:
    """Found: after a snapshot of the machine was restored, good files of the backup were mixed with another log's, or
    replaced."""
    rig = broker()
    copy_tree(rig.disk, f"{DIR}/topics", "/data/snapshot")
    for n in range(later):
        rig.publish("a", b"later %d" % n * 40)
    rig.flush("a")
    do_backup(rig)
    before = contents(rig, "a")
    goes_back(rig, "/data/snapshot")
    for n in range(published):
        rig.publish("a", b"another %d" % n * 40)
    rig.flush("a")
    for _ in range(2):
        report = do_backup(rig)
    assert not any(each.damaged for each in report.reports)
    if published:
        assert report.superseded == [("a", EARLIER)]
        assert from_backup(rig.disk, EARLIER, "a", BACK) == before
        assert from_backup(rig.disk, TO, "a", "/data/now") == contents(rig, "a")
        return
    assert report.superseded == []
    assert from_backup(rig.disk, TO, "a", BACK) == before
    assert later == 1 or any("older state of the directory" in problem for problem in report.problems)


def test_what_was_put_aside_before_stays() -> None:
    rig = broker()
    lives = []
    for _ in range(3):
        do_backup(rig)
        lives.append(contents(rig, "a"))
        makes_anew(rig)
    places = [place for topic, place in do_backup(rig).superseded if topic == "a"]
    assert places == [EARLIER, f"{EARLIER}-2", f"{EARLIER}-3"]
    assert [from_backup(rig.disk, place, "a", f"/data/life{n}") for n, place in enumerate(places)] == lives


def test_a_directory_without_topics_changes_no_backup() -> None:
    """Found: when the volume was not mounted, a backup with --prune was emptied."""
    rig = broker()
    do_backup(rig)
    before = rig.disk.snapshot()
    rig.broker.close()
    remove_tree(rig.disk, f"{DIR}/topics")
    rig.disk.mkdir(f"{DIR}/topics")
    for prune in (True, False):
        with pytest.raises(DataDirectoryError, match="has no topics, the backup has 3"):
            do_backup(rig, prune=prune)
    after = rig.disk.snapshot()
    assert {path: data for path, data in after.items() if path.startswith(TO) and not path.endswith("LOCK")} == {
        path: data for path, data in before.items() if path.startswith(TO) and not path.endswith("LOCK")
    }
