"""The incarnation of a topic: when it is created, what keeps it, and what ends it. ADR 0135, 0218."""

import errno
import json
from dataclasses import replace

import pytest

from tests.support.broker_rig import DIR, BrokerRig
from toymq_py.config.topic_settings import TopicSettings
from toymq_py.storage import offsets, segment_heads, topic_settings
from toymq_py.storage.offline.backup import back_up
from toymq_py.storage.offline.repair import repair
from toymq_py.storage.offline.restore import restore
from toymq_py.storage.offline.verify import verify
from toymq_py.storage.segment_heads import list_segment_files, log_incarnation

PATH = f"{DIR}/topics/t"


def asked(rig: BrokerRig, topic: str = "t") -> str | None:
    """Return the incarnation, as OFFSETS answers it."""
    queue, done = rig.broker.topic(topic).settings_queue, []
    queue.identify(lambda: done.append(queue.incarnation))
    rig.loop.drain()
    assert len(done) == 1, "answered once"
    return done[0]


def test_a_question_makes_it_before_it_is_answered() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    assert "topic.json" not in rig.files("t"), "publishing costs nothing"
    assert rig.broker.topic("t").describe()["incarnation"] is None, "looking writes nothing"
    found = asked(rig)
    assert found is not None
    rig.reopen(power_cut=True)
    assert (asked(rig), rig.broker.topic("t").describe()["incarnation"]) == (found, found)


def test_questions_at_once_make_one() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    queue, told = rig.broker.topic("t").settings_queue, []
    for _ in range(3):
        queue.identify(lambda: told.append(queue.incarnation))
    rig.loop.drain()
    assert len(told) == 3
    assert len({*told, topic_settings.load(rig.disk, PATH).incarnation}) == 1


def test_an_old_directory_gets_one_and_keeps_its_settings() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    rig.broker.close()
    topic_settings.store(rig.disk, PATH, TopicSettings(visibility=7000))
    rig.restart()
    found = asked(rig)
    rig.reopen(power_cut=True)
    assert rig.broker.topic("t").settings == TopicSettings(visibility=7000)
    assert (asked(rig), found is None) == (found, False)


def test_purge_and_settings_keep_it_and_a_topic_made_anew_has_another() -> None:
    rig = BrokerRig()
    assert rig.change("create", "t", visibility="5000") == "OK"
    found = asked(rig)
    rig.publish("t", b"x")
    assert rig.change("configure", "t", visibility="default") == "OK"
    rig.purge("t")
    rig.reopen()
    assert asked(rig) == found
    rig.delete("t")
    rig.publish("t", b"x")
    assert asked(rig) not in (None, found)


def test_a_repeated_create_writes_nothing() -> None:
    rig = BrokerRig()
    assert rig.change("create", "t") == "OK"
    rig.disk.fail("rename", 1, errno.EIO, path="topic.json")
    assert rig.change("create", "t") == "OK"


@pytest.mark.parametrize("operation", ["pwrite", "sync", "rename"])
def test_a_full_disk_leaves_the_question_without_one_until_there_is_room(operation: str) -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    rig.disk.fail(operation, 1, errno.ENOSPC, path="topic.json")
    assert asked(rig) is None
    found = asked(rig)
    rig.reopen(power_cut=True)
    assert (asked(rig), found is None) == (found, False)


def test_settings_that_cannot_be_trusted_are_not_overwritten_by_a_question() -> None:
    rig = BrokerRig()
    assert rig.change("create", "t", retain_max_bytes="1000000") == "OK"
    rig.broker.close()
    rig.put("topics/t/topic.json", b"{")
    rig.restart()
    assert asked(rig) is None
    assert rig.disk.read_file(f"{PATH}/topic.json") == b"{"
    assert rig.change("configure", "t", retain_max_bytes="1000000") == "OK"
    assert asked(rig) is not None


def test_an_incarnation_of_another_form_is_damage() -> None:
    rig = BrokerRig()
    assert rig.change("create", "t") == "OK"
    rig.broker.close()
    state = json.loads(rig.disk.read_file(f"{PATH}/topic.json"))["settings"]
    for wrong in ("", "0" * 15, "G" * 16, 7, "0" * 16 + "\n"):
        rig.put("topics/t/topic.json", topic_settings.encode("settings", state | {"incarnation": wrong}))
        found = topic_settings.load(rig.disk, PATH)
        assert (found.incarnation, "invalid incarnation" in str(found.problem)) == (None, True), wrong


# -- the offsets of an older incarnation (ADR 0218)


def older_offsets(rig: BrokerRig, *, asked_for: bool) -> bytes:
    """Let consumer c ack 15 of 20; delete the topic and make it anew with 20, of which c acks three. Returns: the older
    offsets."""
    for rounds, acked in ((0, 14), (1, 2)):
        rig.publish("t", *[b"%d" % rounds] * 20)
        if asked_for:
            asked(rig)
        subscription = rig.subscribe("t", window=20)
        rig.take(subscription)
        rig.ack("t", 0, acked)
        subscription.close()
        rig.flush("t")
        if not rounds:
            older = rig.disk.read_file(f"{PATH}/offsets.json")
            rig.delete("t")
    return older


@pytest.mark.parametrize("fsync", ["always", "never"])
@pytest.mark.parametrize("asked_for", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_offsets_of_an_older_incarnation_ack_nothing(
    asked_for: bool, both: bool, fsync: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One offsets file was restored. Found: its acks belong to the deleted topic's messages, and would skip twelve of the new
    one's."""
    rig = BrokerRig(fsync=fsync)
    older = older_offsets(rig, asked_for=asked_for)
    rig.broker.close()
    for name in ("offsets.json", *(["offsets.json.prev"] if both else [])):
        rig.put(f"topics/t/{name}", older)
    (report,) = verify(rig.disk, DIR)
    assert "another incarnation" in str(report.findings), "verify says what the broker does"
    rig.restart()
    described = rig.broker.topic("t").describe()
    assert (described["state"], "another incarnation" in described["offsets_problem"]) == ("degraded", True)
    assert "another incarnation" in caplog.text
    got = [msg_id for msg_id, _ in rig.take(rig.subscribe("t", window=50, start="latest"))]
    assert set(got) >= {*range(3, 20)}, "what was never acked comes"
    rig.flush("t")
    rig.reopen()
    rig.flush("t")
    rig.reopen()
    assert rig.broker.topic("t").describe()["state"] == "ok"


def test_repair_takes_them_for_lost() -> None:
    rig = BrokerRig()
    older = older_offsets(rig, asked_for=False)
    rig.broker.close()
    for name in ("offsets.json", "offsets.json.prev"):
        rig.put(f"topics/t/{name}", older)
    (done,) = repair(rig.disk, DIR, pid=2)
    assert {"offsets.json", "offsets.json.prev"} <= {*done.quarantined}
    assert not any(report.damaged for report in verify(rig.disk, DIR))
    rig.restart()
    assert [msg_id for msg_id, _ in rig.take(rig.subscribe("t", window=50))] == [*range(20)]


def test_one_word_stands_in_all_files_of_a_topic_and_goes_along_with_a_backup() -> None:
    rig = BrokerRig()
    older_offsets(rig, asked_for=False)
    found = asked(rig)

    def words(path: str) -> set[str | None]:
        state = offsets.load(rig.disk, path).state
        of_settings = topic_settings.load(rig.disk, path).incarnation
        return {state.incarnation, log_incarnation(rig.disk, path), of_settings}

    assert words(PATH) == {found}
    rig.reopen(power_cut=True)
    assert words(PATH) == {found}
    back_up(rig.disk, DIR, "/backup", pid=2, wall_ns=1)
    assert words("/backup/topics/t") == {found}
    restore(rig.disk, "/backup", "/restored", pid=2)
    assert words("/restored/topics/t") == {found}
    assert not any(report.damaged for report in verify(rig.disk, "/restored"))


def test_files_of_an_older_toymq_are_taken_and_named_with_the_next_commit() -> None:
    rig = BrokerRig()
    older_offsets(rig, asked_for=False)
    rig.broker.close()
    heads = list_segment_files(rig.disk, PATH).heads
    segment_heads.store(rig.disk, PATH, heads)
    state = replace(offsets.load(rig.disk, PATH).state, incarnation=None, generation=None)
    for name in ("offsets.json", "offsets.json.prev"):
        rig.put(f"topics/t/{name}", offsets.encode(state, "t"))
    rig.restart()
    assert rig.broker.topic("t").describe()["state"] == "ok"
    rig.publish("t", b"x")
    rig.flush("t")
    found = log_incarnation(rig.disk, PATH)
    assert found is not None
    assert offsets.load(rig.disk, PATH).state.incarnation == found
    assert asked(rig) == found
    rig.broker.close()
    rig.put("topics/t/offsets.json", offsets.encode(state, "t"))
    rig.restart()
    assert rig.broker.topic("t").describe()["state"] == "ok", "one without a word is taken as before"


def test_a_kill_before_the_log_is_named_leaves_the_word_of_the_offsets() -> None:
    rig = BrokerRig()
    rig.subscribe("t").close()
    rig.flush("t")
    word = offsets.load(rig.disk, PATH).state.incarnation
    assert (word is None, list_segment_files(rig.disk, PATH).incarnation) == (False, None)
    rig.reopen(power_cut=True)
    rig.publish("t", b"x")
    assert list_segment_files(rig.disk, PATH).incarnation == word


def test_without_fsync_the_log_is_named_and_each_segment_synced_once_for_its_head() -> None:
    """Found: with ``--fsync never`` there was no ``segments.json``, so offsets of an older incarnation were accepted."""
    rig = BrokerRig(fsync="never")
    for _ in range(9):
        rig.publish("t", b"x" * 1500)
    assert len(rig.segment_files("t")) > 2
    files = list_segment_files(rig.disk, PATH)
    assert [*files.heads] == files.bases
    synced = [name.rpartition("/")[2] for op, name, _ in rig.disk.trace if op == "sync" and name.endswith(".log")]
    assert synced == rig.segment_files("t"), "a power cut may leave no head without its record"
    word = log_incarnation(rig.disk, PATH)
    rig.reopen()
    rig.publish("t", b"x")
    assert rig.broker.topic("t").describe()["state"] == "ok"
    rig.reopen(power_cut=True)
    rig.publish("t", b"x")
    assert (log_incarnation(rig.disk, PATH), word is None) == (word, False)
    assert list_segment_files(rig.disk, PATH).foreign == {}
