"""``toymqctl tail``: prints the messages of a topic, without a consumer."""

import click

from toymq import sync
from toymq_py import terminal
from toymq_py.consumer_options import Start
from toymq_py.errors import IsPartitioned, OutOfRange, PlacementUnknown
from toymq_py.names import PARTITION_MARK
from toymqctl.broker import Broker
from toymqctl.lines import Row, format_option, json_flag
from toymqctl.quantities import POSITION_TO_READ, TOPIC

WAIT_S = 20.0
"""Time that one FETCH waits; shorter than the idle time-out of middleboxes."""
FETCH_COUNT = 10_000
"""Most messages of one FETCH, which also ends at 1 MiB."""


TURN_S = 1.0
"""Time that following all partitions of a topic waits, all together, before it looks at the first one again."""


@click.command()
@click.argument("topic", type=TOPIC)
@click.option("-n", "--lines", "count", type=click.IntRange(0), default=10, help="Number of ids to go back.")
@click.option("--from", "begin", type=POSITION_TO_READ, help="Start at earliest, latest, an id, @unix-ms, @-5m.")
@click.option("-f", "--follow", is_flag=True, help="Wait for new messages until Ctrl-C.")
@click.option("--max", "max_count", type=click.IntRange(1), help="Stop after this many messages.")
@format_option
@json_flag
@click.pass_obj
def tail(broker: Broker, topic: str, count: int, begin: Start | None, follow: bool, max_count: int | None, form: str) -> None:
    """Print the last messages of TOPIC. Reads without a consumer: nothing is acked, moved or created. Of a partitioned topic
    each partition is read, one after the other, and each line begins with its name; a partition that is away is left out, and
    the exit code is 1.

    \b
        toymqctl tail orders -f
        toymqctl tail orders --from earliest --json
    """
    left_out = False
    with broker.connect() as client:
        try:
            places = [_Place(client, topic, topic, count, begin)]
        except IsPartitioned as error:
            places = []
            for name in (f"{topic}{PARTITION_MARK}{number}" for number in range(error.partitions)):
                try:
                    places.append(_Place(client, topic, name, count, begin))
                except PlacementUnknown as away:  # the others are read
                    left_out = True
                    click.echo(f"toymqctl: {name} is left out: {away}", err=True)
        wait_s = 0.0 if not follow else WAIT_S if len(places) == 1 else TURN_S / max(len(places), 1)
        follow = follow and bool(places)
        left = max_count
        while left != 0 and (follow or any(not place.at_end for place in places)):
            for place in places:
                if left == 0 or (place.at_end and not follow):
                    continue
                read = place.read(client, FETCH_COUNT if left is None else min(left, FETCH_COUNT), wait_s, form, follow=follow)
                left = None if left is None else left - read
    if left_out:
        raise SystemExit(1)


class _Place:
    """The reading position of ``tail`` in one topic."""

    def __init__(self, client: sync.Client, asked: str, topic: str, count: int, begin: Start | None) -> None:
        """Find the first id to read, and the end of the topic. Raises: NoSuchTopic, IsPartitioned."""
        self._asked = asked
        self._topic = topic
        self._at, self._end = _range(client, topic, count, begin)

    @property
    def at_end(self) -> bool:
        """Whether all messages that were there at the start have been read."""
        return self._at == self._end

    def read(self, client: sync.Client, most: int, wait_s: float, form: str, *, follow: bool) -> int:
        """Print the next messages. Returns: how many. Raises: OutOfRange."""
        from toymq_py.storage.record import iter_frames  # only dlq also needs the records' codec

        try:
            batch = client.fetch(self._topic, self._at, most, wait=wait_s)
        except OutOfRange as error:
            if error.first_id <= self._at:
                raise
            click.echo(f"toymqctl: {self._at} to {error.first_id - 1} were removed before they were read", err=True)
            self._at = error.first_id
            return 0
        lines: list[bytes] = []
        for frame in iter_frames(batch.frames):
            if not follow and frame.msg_id >= self._end:
                break
            row = Row.fetched(self._topic, frame.msg_id, frame.ts_ns, frame.key, frame.headers, frame.payload)
            lines.append(row.format(form, self._asked))
        terminal.write(b"".join(lines))
        self._at = batch.next_id if follow else min(batch.next_id, self._end)
        return batch.count


def _range(client: sync.Client, topic: str, count: int, start: Start | None) -> tuple[int, int]:
    """Return the first id to read, and the topic's current end. Raises: NoSuchTopic."""
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
