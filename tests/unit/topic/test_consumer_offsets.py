"""When consumer state is written to the disk. Contract: storage.md, "offsets.json"; ADR 0008, 0051."""

import errno

from tests.support.broker_rig import DIR, BrokerRig
from toymq_py.consumer_options import Start
from toymq_py.errors import NoSuchTopic, RequestError
from toymq_py.storage import offsets

PATH = f"{DIR}/topics/t"


class Watch:
    """Records what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def offsets_writing(self) -> None:
        self.told.append("writing")

    def offsets_written(self) -> None:
        self.told.append("written")

    def topic_deleted(self) -> None:
        self.told.append("deleted")


def rig_with_consumer() -> BrokerRig:
    rig = BrokerRig()
    rig.publish("t", *[b"x"] * 9)
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 4)
    return rig


def test_a_flush_stores_the_present_state() -> None:
    rig = rig_with_consumer()
    state = offsets.load(rig.disk.crash(), PATH).state
    assert (state.next_id, state.consumers["c"]["last_acked"]) == (9, 4)


def test_a_move_back_is_in_both_generations_before_it_is_answered() -> None:
    """Otherwise damage of the newer generation would undo the seek, and skip messages that the consumer is to get again."""
    rig = rig_with_consumer()
    topic = rig.broker.topic("t")
    topic.seek("c", Start("id", 1))
    rig.flush("t")
    for name in (offsets.FILE_NAME, offsets.FILE_NAME + ".prev"):
        state = offsets.decode(rig.disk.read_file(f"{PATH}/{name}"))
        assert state.consumers["c"]["start"] == 1


def test_the_watch_hears_of_each_write_and_of_the_end() -> None:
    rig = rig_with_consumer()
    watch = rig.broker.topic("t").offsets.watch = Watch()
    rig.flush("t")
    assert watch.told == ["writing", "written"]
    rig.delete("t")
    assert watch.told[-1] == "deleted"


def test_a_deleted_topic_stores_nothing() -> None:
    rig = rig_with_consumer()
    topic = rig.broker.topic("t")
    rig.delete("t")
    errors: list[OSError | RequestError | None] = []
    topic.flush_offsets(errors.append)
    topic.offsets.changed()
    rig.advance(1)
    assert isinstance(errors[0], NoSuchTopic)
    assert not rig.disk.exists(PATH)


def test_a_full_disk_is_told_with_the_present_state() -> None:
    rig = rig_with_consumer()
    topic = rig.broker.topic("t")
    states: list[offsets.OffsetsState] = []
    topic.offsets.on_full = states.append
    rig.disk.fail("pwrite", 1, errno.ENOSPC, sticky=True, path=offsets.FILE_NAME)
    rig.ack("t", 5, 6, flush=False)
    rig.advance(1)
    assert states[0].consumers["c"]["last_acked"] == 6
