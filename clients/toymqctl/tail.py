"""``toymqctl tail``."""

import click

from toymq import sync
from toymq_py import terminal
from toymq_py.consumer_options import Start
from toymq_py.errors import OutOfRange
from toymqctl.broker import Broker
from toymqctl.lines import Row, format_option, json_flag
from toymqctl.quantities import POSITION_TO_READ, TOPIC

WAIT_S = 20.0
"""Time that one FETCH waits; shorter than the idle time-out of middleboxes."""
FETCH_COUNT = 10_000
"""Most messages of one FETCH, which also ends at 1 MiB."""


@click.command()
@click.argument("topic", type=TOPIC)
@click.option("-n", "--lines", "count", type=click.IntRange(0), default=10, help="Number of ids to go back.")
@click.option("--from", "begin", type=POSITION_TO_READ, help="Start at earliest, latest, an id or @unix-ms.")
@click.option("-f", "--follow", is_flag=True, help="Wait for new messages until Ctrl-C.")
@click.option("--max", "max_count", type=click.IntRange(1), help="Stop after this many messages.")
@format_option
@json_flag
@click.pass_obj
def tail(broker: Broker, topic: str, count: int, begin: Start | None, follow: bool, max_count: int | None, form: str) -> None:
    """Print the last messages of TOPIC. Reads without a consumer: nothing is acked, moved or created.

    \b
        toymqctl tail orders -f
        toymqctl tail orders --from earliest --json
    """
    from toymq_py.storage.record import iter_frames  # only dlq also needs the records' codec

    with broker.connect() as client:
        at, end = _range(client, topic, count, begin)
        left = max_count
        while (follow or at != end) and left != 0:  # past the end the broker answers with the error
            ask = FETCH_COUNT if left is None else min(left, FETCH_COUNT)
            try:
                batch = client.fetch(topic, at, ask, wait=WAIT_S if follow else 0.0)
            except OutOfRange as error:
                if error.first_id <= at:
                    raise
                click.echo(f"toymqctl: {at} to {error.first_id - 1} were removed before they were read", err=True)
                at = error.first_id
                continue
            lines: list[bytes] = []
            for frame in iter_frames(batch.frames):
                if not follow and frame.msg_id >= end:
                    break
                lines.append(
                    Row.fetched(topic, frame.msg_id, frame.ts_ns, frame.key, frame.headers, frame.payload).format(form)
                )
            terminal.write(b"".join(lines))
            left = None if left is None else left - batch.count
            at = batch.next_id if follow else min(batch.next_id, end)


def _range(client: sync.Client, topic: str, count: int, start: Start | None) -> tuple[int, int]:
    """First id to read, and the current end. Raises: NoSuchTopic."""
    first_id, next_id = client.offsets(topic)
    if start is None:
        return max(first_id, next_id - count), next_id
    match start.kind:
        case "earliest":
            return first_id, next_id
        case "latest":
            return next_id, next_id
        case "time":
            return client.offsets(topic, at_ms=start.value)[0], next_id
        case "id":
            return start.value, next_id
