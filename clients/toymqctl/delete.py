"""``toymqctl delete``: deletes a topic with its messages and consumers."""

import click

from toymq_py.units import counted
from toymqctl.broker import Broker
from toymqctl.confirmation import ask, confirm, is_half_deleted, yes_option
from toymqctl.quantities import TOPIC


@click.command()
@click.argument("topic", type=TOPIC)
@yes_option
@click.pass_obj
def delete(broker: Broker, topic: str, yes: bool) -> None:
    """Delete TOPIC with all its messages and consumers. This cannot be undone.

    Its dead-letter topic, TOPIC.dlq, stays: delete it, too, unless it is needed. That of a partitioned topic goes with it.
    """
    with broker.connect() as client:
        interrupted = is_half_deleted(client, topic)
        if interrupted and not yes:
            ask(f"delete {topic}: that was begun and interrupted; complete it?", "delete", "deleted")
        elif not yes:
            confirm(client, topic, "delete", "deleted")
        count = client.delete(topic)
        if interrupted:  # the broker counts what it has removed just now
            click.echo(f"deleted {topic}, which was interrupted before: how many messages it had is not known")
        else:
            click.echo(f"deleted {topic} with {counted(count, 'message')}")
