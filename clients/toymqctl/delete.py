"""``toymqctl delete``."""

import click

from toymqctl.broker import Broker
from toymqctl.confirmation import confirm
from toymqctl.quantities import TOPIC


@click.command()
@click.argument("topic", type=TOPIC)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def delete(broker: Broker, topic: str, yes: bool) -> None:
    """Delete TOPIC with all its messages and consumers. This cannot be undone."""
    with broker.connect() as client:
        if not yes:
            found = client.describe(topic)
            confirm("delete", "deleted", f"{topic} with {found['messages']} messages and {len(found['consumers'])} consumers")
        click.echo(f"deleted {topic} with {client.delete(topic)} messages")
