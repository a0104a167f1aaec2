"""``toymqctl forget``."""

import click

from toymqctl.broker import Broker
from toymqctl.quantities import CONSUMER, TOPIC


@click.command(short_help="Delete a consumer: it no longer holds messages.")
@click.argument("topic", type=TOPIC)
@click.argument("consumer", type=CONSUMER)
@click.pass_obj
def forget(broker: Broker, topic: str, consumer: str) -> None:
    """Delete CONSUMER's state: it no longer holds messages on the disk, and starts anew if it subscribes again."""
    with broker.connect() as client:
        client.forget(topic, consumer)
    click.echo(f"forgot {consumer} of {topic}")
