"""``toymqctl seek``."""

import click

from toymqctl.broker import Broker
from toymqctl.quantities import CONSUMER, TOPIC


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("consumer", type=CONSUMER)
@click.argument("to")
@click.pass_obj
def seek(broker: Broker, topic: str, consumer: str, to: str) -> None:
    """Move CONSUMER of TOPIC to earliest, latest, an id or @unix-ms.

    \b
        toymqctl seek orders billing earliest     deliver everything again
        toymqctl seek orders billing latest       deliver only new messages

    Messages below TO count as acked, the others as unacked. Its subscriptions continue at TO.
    """
    with broker.connect() as client:
        click.echo(f"{consumer} goes on at {client.seek(topic, consumer, to)}")
