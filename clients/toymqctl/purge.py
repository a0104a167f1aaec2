"""``toymqctl purge``."""

import click

from toymqctl.broker import Broker
from toymqctl.confirmation import confirm
from toymqctl.quantities import TOPIC


@click.command()
@click.argument("topic", type=TOPIC)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def purge(broker: Broker, topic: str, yes: bool) -> None:
    """Drop all messages of TOPIC, for every consumer. Settings and consumers stay, ids go on. This cannot be undone."""
    with broker.connect() as client:
        if not yes:
            found = client.describe(topic)
            confirm("purge", "purged", f"{topic} of {found['messages']} messages, with {len(found['consumers'])} consumers")
        click.echo(f"purged {topic} of {client.purge(topic)} messages")
