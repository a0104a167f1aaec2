"""``toymqctl forget``: deletes a consumer."""

import click

from toymqctl.broker import Broker
from toymqctl.quantities import CONSUMER, TOPIC


@click.command(short_help="Delete a consumer: it no longer holds messages.")
@click.argument("topic", type=TOPIC)
@click.argument("consumer", type=CONSUMER)
@click.pass_obj
def forget(broker: Broker, topic: str, consumer: str) -> None:
    """Delete CONSUMER's state: messages are no longer kept on the disk for it, and it starts anew if it subscribes again."""
    with broker.connect() as client:
        client.forget(topic, consumer)
    click.echo(f"forgot {consumer} of {topic}")
