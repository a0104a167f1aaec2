"""The newest segment of a topic that was not published to since the start is watched from the recovery on. ADR 0140.

Nothing looked at it before the first publish: as after a restore, when a broker is only read at first.
"""

from collections.abc import Callable

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.changed_segments import look, lost_by_all, overwrite, rename_over, topics_of_one_shape
from toymq_py import directory_check
from toymq_py.errors import StorageFailed
from toymq_py.storage.segment import segment_name

TOPIC = f"{DIR}/topics/public"
NEWEST = f"{TOPIC}/{segment_name(6)}"
Harm = Callable[[BrokerRig], None]


def foreign(rig: BrokerRig) -> bytes:
    theirs = rig.disk.read_file(NEWEST.replace("public", "payroll"))
    assert len(theirs) == len(rig.disk.read_file(NEWEST)), "not even its size tells"
    return theirs


def foreign_written_over(rig: BrokerRig) -> None:
    overwrite(rig, NEWEST, foreign(rig))


def foreign_renamed_over(rig: BrokerRig) -> None:
    rename_over(rig, NEWEST, foreign(rig))


def own_copy(rig: BrokerRig) -> None:
    rename_over(rig, NEWEST, rig.disk.read_file(NEWEST))


def removed(rig: BrokerRig) -> None:
    rig.disk.unlink(NEWEST)


def directory_moved(rig: BrokerRig) -> None:
    rig.disk.rename(TOPIC, f"{DIR}/away")


def cut(rig: BrokerRig) -> None:
    file = rig.disk.open(NEWEST)
    file.truncate(200)
    file.close()


HARMS = [foreign_written_over, foreign_renamed_over, own_copy, removed, directory_moved, cut]


def restarted() -> BrokerRig:
    """Two topics of one shape, whose newest segments begin with record 6, in a broker that was not published to."""
    rig = topics_of_one_shape()
    rig.publish("payroll", b"p")
    rig.broker.close()
    rig.restart()
    rig.loop.drain()
    return rig


def delivered(rig: BrokerRig) -> list[tuple[int, bytes]]:
    """The messages that a new consumer gets, and the first byte of each."""
    subscription, found = rig.subscribe("public", start="earliest"), []
    for _ in range(9):
        while (delivery := subscription.take(1 << 20)) is not None:
            records = delivery.records
            found += [(records.ids[row], records.payloads[row][:1]) for row in range(delivery.start, delivery.stop)]
        rig.loop.drain()
    return found


def fetched(rig: BrokerRig) -> bytes:
    log = rig.broker.topics["public"].log
    at, found = log.first_id, []
    while at < log.committed_id:
        try:
            frames, _, at = log.read_frames(at, 100, 1 << 20)
        except BlockingIOError:
            rig.loop.drain()
        else:
            found.append(frames)
    return b"".join(found)


def is_refused(rig: BrokerRig) -> bool:
    outcome = rig.publish("public", b"new")[0]
    return isinstance(outcome.error or outcome.commit.error, StorageFailed)


@pytest.mark.parametrize("harm", HARMS)
def test_a_look_notices_it(harm: Harm) -> None:
    rig = restarted()
    harm(rig)
    look(rig)
    assert rig.broker.topics["public"].state == "failed"
    assert is_refused(rig)
    assert {letter for _, letter in delivered(rig)} <= {b"o"}
    assert b"p" * 100 not in fetched(rig)
    assert rig.publish("payroll", b"y")[0].error is None, "the others go on"


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("was_read", [False, True], ids=["closed", "open"])
def test_the_first_publish_notices_it_before_a_look(harm: Harm, was_read: bool) -> None:
    """It got OK, and after the restart it was not there."""
    rig = restarted()
    if was_read:
        assert delivered(rig) == [(n, b"o") for n in range(10)]
    harm(rig)
    assert is_refused(rig)
    assert rig.broker.topics["public"].state == "failed"
    if harm in (foreign_written_over, foreign_renamed_over):
        assert rig.disk.read_file(NEWEST) == foreign(rig), "nothing is written into it"


@pytest.mark.parametrize("harm", HARMS)
def test_a_reader_gets_nothing_of_another_file_before_a_look(harm: Harm) -> None:
    rig = restarted()
    harm(rig)
    assert b"p" * 100 not in fetched(rig)
    assert {letter for _, letter in delivered(rig)} <= {b"o"}
    assert rig.broker.topics["public"].state in ("failed", "degraded")


@pytest.mark.parametrize("harm", HARMS)
def test_what_is_answered_after_a_reader_noticed_it_is_kept(harm: Harm) -> None:
    rig = restarted()
    harm(rig)
    delivered(rig)
    outcome = rig.publish("public", b"new")[0]
    refused = outcome.error or outcome.commit.error
    look(rig)
    assert rig.broker.topics["public"].state in ("failed", "degraded")
    if refused is None:
        rig.reopen()
        assert rig.records("public")[-1][2] == b"new"


@pytest.mark.parametrize("written", [False, True])
def test_an_own_copy_goes_on_being_read(written: bool) -> None:
    for reads_first in (False, True):
        rig = restarted()
        if written:
            rig.publish("public", b"o")
        own_copy(rig)
        rig.broker.topics["public"].log.tail.clear()
        if not reads_first:
            look(rig)
        assert delivered(rig) == [(n, b"o") for n in range(11 if written else 10)]
        look(rig)
        assert rig.broker.topics["public"].state == "failed", "what is published needs a restart, as with one that was written"
        rig.reopen()
        assert (rig.broker.topics["public"].state, rig.publish("public", b"new")[0].error) == ("ok", None)


def test_a_file_whose_time_alone_was_changed_is_scanned_and_goes_on() -> None:
    """As ``touch`` does, or a file system that sets the time late."""
    for notice in (look, delivered, lambda rig: None):
        rig = restarted()
        overwrite(rig, NEWEST, rig.disk.read_file(NEWEST))
        notice(rig)
        assert rig.publish("public", b"new")[0].commit.error is None
        look(rig)
        assert (rig.broker.topics["public"].state, len(delivered(rig))) == ("ok", 11)


def test_damage_in_the_middle_is_found_by_a_look(caplog: pytest.LogCaptureFixture) -> None:
    """No commit changes the file, so a change of its stamp is another program's."""
    rig = restarted()
    file = rig.disk.open(NEWEST)
    file.pwrite(b"?", 200)
    file.close()
    look(rig)
    assert rig.broker.topics["public"].state == "degraded"
    assert lost_by_all(rig, "public") == (1, 1)
    assert rig.publish("public", b"new")[0].error is None, "in another segment"
    look(rig)
    assert caplog.text.count("the segment is scanned") == 1


@pytest.mark.parametrize("harm", [foreign_renamed_over, removed, cut])
def test_a_file_that_gave_way_to_others_is_watched_too(harm: Harm) -> None:
    """Its descriptor was taken by other topics, and with it the look."""
    rig = restarted()
    rig.publish("public", b"o")
    rig.publish("payroll", b"p")
    look(rig)
    rig.broker.topics["public"].log.close()
    harm(rig)
    look(rig)
    assert rig.broker.topics["public"].state == "failed"


def test_of_many_topics_some_are_looked_at_in_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stat each, and no descriptor."""
    monkeypatch.setattr(directory_check, "IDLE_MAX", 2)
    rig = BrokerRig()
    for topic in "abcde":
        rig.publish(topic, b"x")
    rig.broker.close()
    rig.restart()
    rig.loop.drain()
    look(rig)
    rig.disk.trace.clear()
    look(rig)
    assert not [name for op, name, _ in rig.disk.trace if op == "open" and name.endswith(".log")]
    for topic in "abcde":
        rig.disk.unlink(f"{DIR}/topics/{topic}/{segment_name(0)}")
    seen = []
    for _ in range(3):
        look(rig)
        seen.append({name for name, topic in rig.broker.topics.items() if topic.state == "failed"})
    assert [len(each) for each in seen] == [1, 3, 5]
