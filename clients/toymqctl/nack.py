"""``toymqctl nack``."""

import click

from toymq_py.model import IdRange
from toymqctl.broker import Broker
from toymqctl.quantities import CONSUMER, TOPIC, Ids, Seconds


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("consumer", type=CONSUMER)
@click.argument("ids", type=Ids())
@click.option("--delay", "delay_s", type=Seconds(), help="Until they are delivered again; the topic's backoff unless given.")
@click.option("--dead", is_flag=True, help="Give them up: they go to the dead letters at once.")
@click.option("--reason", help="Any text; their dead letters will say it.")
@click.pass_obj
def nack(
    broker: Broker,
    topic: str,
    consumer: str,
    ids: tuple[IdRange, ...],
    delay_s: float | None,
    dead: bool,
    reason: str | None,
) -> None:
    """Give back IDS of TOPIC that are in flight to CONSUMER, so that they are delivered again: 7, 3-9 or 3-9,12.

    Says how many of them were in flight.
    """
    if dead and delay_s is not None:
        raise click.UsageError("--dead and --delay exclude each other")
    with broker.connect() as client:
        count = client.nack(topic, consumer, ids, delay=delay_s, dead=dead, reason=reason)
        click.echo(f"{'gave up' if dead else 'gave back'} {count}")
