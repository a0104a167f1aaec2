"""``toymqctl delete``."""

import click

from toymq_py.units import counted
from toymqctl.broker import Broker
from toymqctl.confirmation import confirm, yes_option
from toymqctl.quantities import TOPIC


@click.command()
@click.argument("topic", type=TOPIC)
@yes_option
@click.pass_obj
def delete(broker: Broker, topic: str, yes: bool) -> None:
    """Delete TOPIC with all its messages and consumers. This cannot be undone."""
    with broker.connect() as client:
        if not yes:
            confirm(client, topic, "delete", "deleted")
        click.echo(f"deleted {topic} with {counted(client.delete(topic), 'message')}")
