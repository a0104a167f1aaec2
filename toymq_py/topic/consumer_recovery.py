"""Consumers of a topic after a restart. Contract: storage.md, "Recovery" (step 8); ADR 0051."""

from dataclasses import dataclass, field

from toymq_py.consumer import Consumer, ConsumerSnapshot, IdSet
from toymq_py.consumer_options import MODES, Mode
from toymq_py.errors import DamagedData
from toymq_py.storage.log import Log
from toymq_py.storage.offsets import LoadedOffsets, OffsetsSource, OffsetsState


@dataclass(slots=True)
class RestoredConsumers:
    """Consumers from the offsets file, cut to what the log holds."""

    consumers: list[Consumer] = field(default_factory=list)
    modes: dict[str, Mode] = field(default_factory=dict)
    """The modes by the consumer's name; exclusive for a consumer without."""
    problem: str | None = None
    """The fault of the offsets."""
    lacks_consumers: bool = False
    """Whether the offsets were damaged: consumers may be missing."""
    stored: OffsetsState | None = None
    """The state that is on stable storage; None when it is not the one that was restored."""


def restore(loaded: LoadedOffsets, log: Log, scheduled: IdSet) -> RestoredConsumers:
    """Make the consumers that the offsets name. ``scheduled``: ids whose delay has not ended."""
    restored = RestoredConsumers(problem=loaded.problem, lacks_consumers=loaded.problem is not None)
    known = {str(mode): mode for mode in MODES}  # a newer toymq may know more
    restored.modes = {name: known[mode] for name, mode in loaded.state.modes.items() if mode in known}
    for name, raw in loaded.state.consumers.items():
        try:
            snapshot = ConsumerSnapshot.from_json(raw)
            consumer, changed = Consumer.restore(name, snapshot, log.first_id, log.committed_id, scheduled)
        except DamagedData as error:
            restored.problem = f"consumer {name}: {error}"
            restored.lacks_consumers = True
            continue
        if changed:
            restored.problem = f"consumer {name} was cut to what the log holds, {log.first_id} to {log.committed_id}"
        skip_missing(consumer, log)
        restored.consumers.append(consumer)
    if loaded.source is OffsetsSource.CURRENT and len(restored.consumers) == len(loaded.state.consumers):
        restored.stored = loaded.state
    return restored


def skip_missing(consumer: Consumer, log: Log) -> None:
    """Ack the ids that have no record."""
    for first, last in (*log.lost, *log.removed):
        if last >= consumer.floor:
            consumer.skip(max(first, consumer.floor), last)
