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
    """Move CONSUMER of TOPIC: TO is earliest, latest, an id or @unix-ms.

    \b
        toymqctl seek orders billing earliest     everything once more
        toymqctl seek orders billing latest       only what is still to come

    What is below counts as acked, the rest as not. Whoever is subscribed goes on there.
    """
    with broker.connect() as client:
        click.echo(f"{consumer} goes on at {client.seek(topic, consumer, to)}")
