"""A topic's consumers and gaps as a restart finds them. Contract: storage.md, "Recovery" (step 8); ADR 0051."""

from typing import TYPE_CHECKING

from toymq_py.consumer import Consumer, ConsumerSnapshot
from toymq_py.errors import DamagedData
from toymq_py.storage.offsets import LoadedOffsets, OffsetsState, Source
from toymq_py.topic.redriver import REDRIVER

if TYPE_CHECKING:
    from toymq_py.topic.topic import Topic


def restore(topic: "Topic", loaded: LoadedOffsets) -> OffsetsState | None:
    """Give a topic the consumers of its offsets, cut to what the log holds.

    Returns: the state that is on stable storage; None when it is not the one that was restored.
    """
    log = topic.log
    topic.lacks_consumers = loaded.problem is not None
    topic.offsets_problem = loaded.problem
    for name, raw in loaded.state.consumers.items():
        try:
            snapshot = ConsumerSnapshot.from_json(raw)
            consumer, changed = Consumer.restore(name, snapshot, log.first_id, log.committed_id, topic.delays.schedule.ids)
        except DamagedData as error:
            topic.offsets_problem = f"consumer {name}: {error}"
            topic.lacks_consumers = True
            continue
        if changed:
            topic.offsets_problem = f"consumer {name} was cut to what the log holds, {log.first_id} to {log.committed_id}"
        topic.skip_known(consumer)
        if name == REDRIVER:
            topic.redriver.consumers = [consumer]
            continue
        topic.consumers[name] = consumer
        topic.limit_attempts(consumer)
    for first, last in log.lost:
        topic.delays.schedule.drop(first, last)
    whole = loaded.source is Source.CURRENT and len(topic.all_consumers()) == len(loaded.state.consumers)
    return loaded.state if whole else None
