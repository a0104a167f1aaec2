"""SEEK: moves a consumer. Contract: protocol.md, "SEEK"."""

from collections.abc import Callable

from toymq_py.broker import Done
from toymq_py.disk_errors import when_readable
from toymq_py.protocol import commands, encode_ok
from toymq_py.topic import Topic


def seeking(topic: Topic, command: commands.Seek) -> tuple[Callable[[Done], None], Callable[[], bytes]]:
    """What begins it, and the reply to be made when it is on stable storage. A position by time may be in a segment that is to
    be fetched from a bucket first."""
    at: list[int] = []

    def seek(done: Done) -> None:
        at.append(topic.seek(command.consumer, command.start, creates=command.creates))
        topic.flush_offsets(done)

    return lambda done: when_readable(seek, done), lambda: encode_ok(at[-1])
