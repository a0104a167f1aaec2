"""``toymqctl seek``."""

import click

from toymq import arguments, sync
from toymq_py.consumer_options import Start
from toymq_py.errors import BadArgument
from toymqctl.broker import Broker
from toymqctl.quantities import CONSUMER, POSITION, TOPIC

NAMED = 5
"""Most consumers that an error names."""


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("consumer", type=CONSUMER)
@click.argument("to", type=POSITION)
@click.option("--create", "creates", is_flag=True, help="Create CONSUMER if it does not exist.")
@click.pass_obj
def seek(broker: Broker, topic: str, consumer: str, to: Start, creates: bool) -> None:
    """Move CONSUMER of TOPIC to earliest, latest, an id or @unix-ms.

    \b
        toymqctl seek orders billing earliest     deliver everything again
        toymqctl seek orders billing latest       deliver only new messages

    Messages below TO count as acked, the others as unacked. Its subscriptions continue at TO.
    """
    arguments.consumer(consumer)
    with broker.connect() as client:
        if not creates:
            _check_exists(client, topic, consumer)
        click.echo(f"{consumer} goes on at {client.seek(topic, consumer, str(to))}")


def _check_exists(client: sync.Client, topic: str, consumer: str) -> None:
    """SEEK creates a consumer: a misspelled one would hold every message from then on. Raises: BadArgument, NoSuchTopic."""
    names = sorted(each["consumer"] for each in client.describe(topic)["consumers"])
    if consumer not in names:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        present = ", ".join(names[:NAMED]) + more or "none"
        raise BadArgument(f"{topic} has no consumer {consumer}: it has {present}; --create makes it")
