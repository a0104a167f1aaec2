"""``toymqctl sub``: prints the messages of a topic, and acks each."""

from contextlib import suppress

import click

from toymq import RequestTimeout, sync
from toymq.click_support import Duration
from toymq_py import terminal
from toymq_py.consumer_options import MODES, Mode, Start
from toymq_py.errors import NoSuchTopic
from toymq_py.names import is_pattern
from toymqctl.broker import TIMEOUT_S, Broker
from toymqctl.lines import Row, format_option, json_flag
from toymqctl.new_topics import is_new, say_made
from toymqctl.quantities import CONSUMER, POSITION, TOPIC

ANSWERS_S = 10.0
"""With a shorter --timeout a broker that is up has so long for an answer, as to an ack behind a slow disk."""


@click.command(short_help="Print the messages of a topic, and ack each.")
@click.argument("topic", metavar="TOPIC|PATTERN", type=TOPIC)
@click.option("--consumer", type=CONSUMER, default="toymqctl", help="Durable consumer: stays until `forget`.")
@click.option("--no-ack", is_flag=True, help="Do not ack: the messages are delivered again after this session.")
@click.option("--max", "max_count", type=click.IntRange(1), help="Stop after this many messages.")
@click.option("--timeout", "timeout_s", type=Duration(), help="Stop when no message came for this long.")
@click.option("--start", type=POSITION, help="Start of a new consumer: earliest (default), latest, an id, @unix-ms, @-5m.")
@click.option("--window", type=click.IntRange(1), default=1024, help="Most messages in flight.")
@click.option("--visibility", "visibility_s", type=Duration(), help="Lease of each message; default: the topic's.")
@click.option(
    "--mode", type=click.Choice(MODES), help="shared: share messages with other subscribers (a work queue); keyed: the same, "
    "and of each group key one message at a time, in order; single: one is active in each topic, the others take over "
    "when it goes; exclusive (default): take over from the current subscriber."
)  # fmt: skip
@format_option
@json_flag
@click.pass_obj
def sub(
    broker: Broker,
    topic: str,
    consumer: str,
    no_ack: bool,
    max_count: int | None,
    timeout_s: float | None,
    start: Start | None,
    window: int,
    visibility_s: float | None,
    mode: Mode | None,
    form: str,
) -> None:
    """Print the messages of TOPIC, one a line, and ack each after printing it. Ctrl-C stops. Of a pattern or
    a partitioned topic each line begins with its topic.

    \b
        toymqctl sub orders --consumer billing
        toymqctl sub 'orders.*' --consumer workers --mode shared --window 8
        toymqctl sub orders --format json --timeout 1s

    Without --consumer the consumer is named `toymqctl`. It stays when this command ends, and messages that it has not acked are
    kept on the disk: `toymqctl forget TOPIC toymqctl` deletes it. `toymqctl tail` reads without a consumer.
    """
    count = 0
    answers_s = TIMEOUT_S if timeout_s is None else min(max(timeout_s, ANSWERS_S), TIMEOUT_S)
    with broker.connect(timeout_s=answers_s) as client:
        window = min(window, max_count) if max_count is not None else window
        if is_new(topic, lambda: client.describe(topic)):
            say_made(topic)
        if start is not None:
            _say_when_elsewhere(client, topic, consumer, start)
        subscription = client.sub(
            topic, consumer, window=window, visibility=visibility_s, mode=mode, start=None if start is None else str(start)
        )
        while max_count is None or count < max_count:
            try:
                message = subscription.next(timeout_s)
            except RequestTimeout:
                if client.connected:
                    return
                raise  # whether there is a message is unknown
            terminal.write(Row.delivered(message).format(form, topic))
            count += 1
            if not no_ack:
                message.ack()


def _say_when_elsewhere(client: sync.Client, topic: str, consumer: str, start: Start) -> None:
    """Say on stderr when the consumer will not begin at ``start``: the broker takes the nearest id that exists (delivery.md),
    and ignores ``start`` for a consumer that exists."""
    if is_pattern(topic):
        return
    with suppress(NoSuchTopic):
        found = client.describe(topic)
        next_id = found.get("next_id", 0)
        if any(each["consumer"] == consumer for each in found["consumers"]):
            note = f"{consumer} of {topic} exists and goes on where it was: --start is for a new consumer, `seek` moves one"
        elif start.kind == "id" and start.value > next_id and "parts" not in found:
            note = f"{topic} has no message {start} yet: {consumer} begins at {next_id}, its next message"
        else:
            return
        click.echo(f"toymqctl: {note}", err=True)
