"""``toymqctl pull``."""

import click

from toymq_py import terminal
from toymqctl.broker import Broker
from toymqctl.lines import Row, format_option, json_flag
from toymqctl.quantities import CONSUMER, TOPIC, Seconds


@click.command()
@click.argument("topic", metavar="TOPIC|PATTERN", type=TOPIC)
@click.argument("consumer", type=CONSUMER)
@click.option("--max", "max_count", type=click.IntRange(1), default=1, show_default=True, help="No more than so many.")
@click.option("--wait", "wait_s", type=Seconds(), default="0s", show_default=True, help="How long to wait for the first one.")
@click.option("--visibility", "visibility_s", type=Seconds(), help="How long they are ours; the topic's unless given.")
@click.option("--ack", "acks", is_flag=True, help="Done with them: ack each after it was printed.")
@format_option
@json_flag
@click.pass_obj
def pull(
    broker: Broker,
    topic: str,
    consumer: str,
    max_count: int,
    wait_s: float,
    visibility_s: float | None,
    acks: bool,
    form: str,
) -> None:
    """Take messages of TOPIC out of CONSUMER's work, one a line, for a script: they are hidden from other workers until they
    are acked, given back, or their time is over, whatever becomes of this command.

    \b
        toymqctl pull jobs workers --wait 1m --visibility 10m --json
        toymqctl ack jobs workers 17
        toymqctl nack jobs workers 17 --delay 5s

    Exit code 0 and a word on stderr when there is nothing.
    """
    with broker.connect() as client:
        found = client.pull(topic, consumer, max_count, wait=wait_s, visibility=visibility_s)
        for message in found:
            terminal.write(Row.delivered(message).format(form))
            if acks:
                message.ack()
    if not found:
        click.echo(f"toymqctl: nothing is ready in {topic} for {consumer}", err=True)
