"""``toymqctl ack``: acks messages of a consumer by their ids."""

import click

from toymq_py.records import IdRange
from toymqctl.broker import Broker
from toymqctl.quantities import CONSUMER, TOPIC, Ids, say_why_fewer


@click.command(short_help="Ack messages of a consumer by their ids.")
@click.argument("topic", type=TOPIC)
@click.argument("consumer", type=CONSUMER)
@click.argument("ids", type=Ids())
@click.option("--sync", is_flag=True, help="Wait until the acks are on the disk.")
@click.pass_obj
def ack(broker: Broker, topic: str, consumer: str, ids: tuple[IdRange, ...], sync: bool) -> None:
    """Ack IDS (7, 3-9 or 3-9,12) of TOPIC that were delivered to CONSUMER, by any session.

    Prints how many were in flight and are now acked. Acking again has no effect.
    """
    with broker.connect() as client:
        count = client.ack(topic, consumer, ids, sync=sync)
    click.echo(f"acked {count}")
    say_why_fewer(count, ids, f"in flight to {consumer}: never delivered to it, or acked already")
