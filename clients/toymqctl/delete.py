"""``toymqctl delete``."""

import click

from toymqctl.broker import Broker
from toymqctl.quantities import TOPIC


@click.command()
@click.argument("topic", type=TOPIC)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def delete(broker: Broker, topic: str, yes: bool) -> None:
    """Delete TOPIC with all its messages and consumers. There is no way back."""
    with broker.connect() as client:
        if not yes:
            found = client.describe(topic)
            what = f"{topic} with {found['messages']} messages and {len(found['consumers'])} consumers"
            try:
                sure = click.confirm(f"delete {what}?", err=True)
            except click.Abort:
                raise click.UsageError("nobody answered and nothing was deleted; --yes deletes without asking") from None
            if not sure:
                click.echo("toymqctl: nothing was deleted", err=True)
                raise SystemExit(1)
        click.echo(f"deleted {topic} with {client.delete(topic)} messages")
