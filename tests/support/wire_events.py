"""Converts a stream of commands to a form that does not depend on how its bytes were cut into pieces."""

from collections.abc import Iterable, Sequence
from typing import Any

from toymq_py.protocol import Command, Publish, Rejected, ServerConnection, SettlementRun


def flat(commands: Iterable[Command]) -> list[Any]:
    """Convert commands to one element each: runs are split, refusals become (code, text, fatal), and refused sequences are
    kept."""
    events: list[Any] = []
    for command in commands:
        if isinstance(command, Publish):
            none = [None] * len(command.keys)
            columns = (command.delays_ms or none, command.ttls_ms or none, command.seqs or none)
            rows = zip(command.keys, command.bodies, *columns, strict=True)
            events += [(command.topic, key, body, command.hdr, *options) for key, body, *options in rows]
        elif isinstance(command, SettlementRun):
            events += command.each()
        elif isinstance(command, Rejected):
            events.append((command.error.code, str(command.error), command.error.fatal))
            if command.publish is not None:
                events.append(("refused", *command.publish))
        else:
            events.append(command)
    return events


def count_of(commands: Iterable[Command]) -> int:
    """Count commands, each command of a run separately."""
    return len([event for event in flat(commands) if not (isinstance(event, tuple) and event[0] == "refused")])


def events_of(
    data: bytes, cuts: Sequence[int] = (), *, max_commands: int = 512, max_payload: int = 100
) -> tuple[list[Any], bool, bool | None]:
    """Parse a stream that arrives in pieces. Returns: its events, whether it failed, and whether it ended inside a frame."""
    connection = ServerConnection(max_payload)
    commands: list[Command] = []

    def take() -> None:
        while found := connection.next_commands(max_commands):
            assert count_of(found) <= max_commands
            commands.extend(found)

    at = 0
    for cut in [*sorted(cuts), len(data)]:
        connection.receive_data(data[at:cut])
        at = cut
        take()
    connection.receive_eof()
    take()
    return flat(commands), connection.failed, connection.ended_torn
