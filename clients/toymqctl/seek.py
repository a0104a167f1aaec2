"""``toymqctl seek``: moves a consumer to another message."""

import click

from toymq_py.consumer_options import Start
from toymq_py.errors import NoSuchConsumer
from toymq_py.units import counted
from toymqctl.broker import Broker
from toymqctl.quantities import CONSUMER, POSITION, TOPIC


@click.command(short_help="Move a consumer to another message.")
@click.argument("topic", type=TOPIC)
@click.argument("consumer", type=CONSUMER)
@click.argument("to", type=POSITION)
@click.option("--create", "creates", is_flag=True, help="Create CONSUMER if it does not exist.")
@click.pass_obj
def seek(broker: Broker, topic: str, consumer: str, to: Start, creates: bool) -> None:
    """Move CONSUMER of TOPIC to earliest, latest, an id or a time.

    \b
        toymqctl seek orders billing earliest                deliver everything again
        toymqctl seek orders billing latest                  deliver only new messages
        toymqctl seek orders billing @-5m                    from five minutes ago on
        toymqctl seek orders billing @2026-11-30T00:50:00Z   from then on; also @unix-ms

    Messages below TO count as acked, the others as unacked. The consumer's subscriptions continue at TO.
    """
    with broker.connect() as client:
        try:
            is_whole = "parts" in client.describe(topic)
            moved = client.seek(topic, consumer, str(to), create=creates)
        except NoSuchConsumer as error:
            raise NoSuchConsumer(f"{error}; --create makes it") from None
    click.echo(f"{consumer} goes on at {to} in {counted(moved, 'partition')}" if is_whole else f"{consumer} goes on at {moved}")
