"""``toymqctl purge``: drops all messages of a topic."""

import click

from toymq_py.units import counted
from toymqctl.broker import Broker
from toymqctl.confirmation import confirm, yes_option
from toymqctl.quantities import TOPIC


@click.command()
@click.argument("topic", type=TOPIC)
@yes_option
@click.pass_obj
def purge(broker: Broker, topic: str, yes: bool) -> None:
    """Drop all messages of TOPIC, for every consumer. Settings and consumers stay, ids go on. This cannot be undone."""
    with broker.connect() as client:
        if not yes:
            confirm(client, topic, "purge", "purged")
        click.echo(f"purged {topic} of {counted(client.purge(topic), 'message')}")
