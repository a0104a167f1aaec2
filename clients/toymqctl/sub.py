"""``toymqctl sub``."""

from contextlib import suppress

import click

from toymq import RequestTimeout, sync
from toymq_py import terminal
from toymq_py.errors import NoSuchTopic
from toymq_py.model import Mode, is_pattern
from toymqctl.broker import Broker
from toymqctl.lines import Row, format_option, json_flag
from toymqctl.quantities import CONSUMER, TOPIC, Seconds


@click.command()
@click.argument("topic", metavar="TOPIC|PATTERN", type=TOPIC)
@click.option("--consumer", type=CONSUMER, default="toymqctl", show_default=True, help="Durable name: its place is kept.")
@click.option("--no-ack", is_flag=True, help="Only look: everything comes again after this session.")
@click.option("--max", "max_count", type=click.IntRange(1), help="End after so many messages.")
@click.option("--timeout", "timeout_s", type=Seconds(), help="End when nothing came for so long.")
@click.option("--start", help="Where a new consumer begins: earliest (default), latest, an id, @unix-ms.")
@click.option("--window", type=click.IntRange(1), default=1024, show_default=True, help="Messages in flight.")
@click.option("--visibility", "visibility_s", type=Seconds(), help="How long one may stay unacked; the topic's unless given.")
@click.option(
    "--mode", type=click.Choice(("exclusive", "shared")), help="shared: compete with others of this consumer (a work queue); "
    "exclusive (default): take over from another."
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
    start: str | None,
    window: int,
    visibility_s: float | None,
    mode: Mode | None,
    form: str,
) -> None:
    """Print the messages of TOPIC, one a line, and ack each after it was printed. Ends with Ctrl-C.

    \b
        toymqctl sub orders --consumer billing
        toymqctl sub 'orders.*' --consumer workers --mode shared --window 8
        toymqctl sub orders --format json --timeout 1s

    To look without a consumer there is `toymqctl tail`.
    """
    count = 0
    with broker.connect() as client:
        window = min(window, max_count) if max_count is not None else window
        _say_when_new(client, topic)
        subscription = client.sub(topic, consumer, window=window, visibility=visibility_s, mode=mode, start=start)
        while max_count is None or count < max_count:
            try:
                message = subscription.next(timeout_s)
            except RequestTimeout:
                return
            terminal.write(Row.delivered(message).format(form))
            count += 1
            if not no_ack:
                message.ack()


def _say_when_new(client: sync.Client, topic: str) -> None:
    """A name that is spelled wrong is a new topic; whoever waits for its messages should know."""
    if is_pattern(topic):
        return
    with suppress(NoSuchTopic):
        client.offsets(topic)
        return
    click.echo(f"toymqctl: {topic} is new: nobody has published to it yet", err=True)
