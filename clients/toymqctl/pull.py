"""``toymqctl pull``: leases messages of a work queue, for scripts."""

import sys
from dataclasses import replace

import click

from toymq.click_support import Duration
from toymq_py import terminal
from toymq_py.consumer_options import POLL_MODES, Mode
from toymqctl.broker import Broker
from toymqctl.lines import Row, format_option, json_flag
from toymqctl.new_topics import is_new, say_made
from toymqctl.quantities import CONSUMER, TOPIC


@click.command(short_help="Lease messages of a work queue, for scripts.")
@click.argument("topic", metavar="TOPIC|PATTERN", type=TOPIC)
@click.argument("consumer", type=CONSUMER)
@click.option("--max", "max_count", type=click.IntRange(1), default=1, help="Most messages to lease.")
@click.option("--wait", "wait_s", type=Duration(), default="0s", help="Time to wait for the first message.")
@click.option("--visibility", "visibility_s", type=Duration(), help="Length of the lease; default: the topic's.")
@click.option("--mode", type=click.Choice(POLL_MODES), help="keyed: one message of each group key at a time, in order.")
@click.option("--fail-if-empty", "fails", is_flag=True, help="Exit with 1 when nothing is ready, for loops of a shell.")
@click.option("--ack", "acks", is_flag=True, help="Ack each message after printing it.")
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
    mode: Mode | None,
    fails: bool,
    acks: bool,
    form: str,
) -> None:
    """Lease messages of TOPIC for CONSUMER and print them, one a line, for scripts. Other workers do not get them until they
    are nacked or the lease ends, even after this command has ended.

    \b
        toymqctl pull jobs workers --wait 1m --visibility 10m --json
        toymqctl ack jobs workers 17
        toymqctl nack jobs workers 17 --delay 5s

    Use --mode keyed if the messages of a group must stay in order. Without --mode the mode that the consumer had last is used,
    also after a restart of the broker.

    For a pattern or a partitioned topic each line begins with the message's topic: `toymqctl ack jobs#3 workers 17`.

    With `nack --lease LEASE`, where LEASE is the `lease` in the JSON, the message is left alone if another worker has it by
    then.

    Without a message the exit code is 0, with --fail-if-empty 1, and a note goes to stderr.
    """
    with broker.connect() as client:
        if is_new(topic, lambda: client.describe(topic)):
            say_made(topic)
        found = client.pull(topic, consumer, max_count, wait=wait_s, visibility=visibility_s, mode=mode)
        for message in found:
            terminal.write(replace(Row.delivered(message), lease=message.lease).format(form, topic))
            if acks:
                message.ack()
    if found and not acks and sys.stderr.isatty():
        first = found[0]
        ack = f"`toymqctl ack {first.topic} {consumer} {first.id}`, or pull with --ack"
        click.echo(f"toymqctl: leased, not acked; what is not acked comes again when its lease ends: {ack}", err=True)
    if not found:
        click.echo(f"toymqctl: nothing is ready in {topic} for {consumer}", err=True)
        if fails:
            raise SystemExit(1)
