"""SEEK: moves a consumer. Contract: protocol.md, "SEEK"."""

from collections.abc import Callable

from toymq_py.broker import Broker, Done
from toymq_py.disk_errors import when_readable
from toymq_py.partition_operations import check_seek, for_each_with
from toymq_py.protocol import commands, encode_ok


def seeking(broker: Broker, command: commands.Seek) -> tuple[Callable[[Done], None], Callable[[], bytes]]:
    """The function that begins a SEEK, and the one that makes its reply once it is on stable storage: the id, or the number of
    moved partitions.

    A position by time may be in a segment that has to be fetched from a bucket first. Raises: BadArgument.
    """
    check_seek(broker, command.topic, command.start)
    is_whole = broker.partitioned.find(command.topic) is not None
    at: dict[str, int] = {}

    def seek_one(name: str, done: Done) -> None:
        topic = broker.topic(name)

        def seek(stored: Done) -> None:
            at[name] = topic.seek(command.consumer, command.start, creates=command.creates)
            topic.flush_offsets(stored)

        when_readable(seek, done)

    def answer() -> bytes:
        return encode_ok(len(at) if is_whole else at[command.topic])

    return lambda done: for_each_with(broker, command.topic, seek_one, done), answer
