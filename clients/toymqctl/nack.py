"""``toymqctl nack``: returns messages to be delivered again, or gives them up."""

import click

from toymq.click_support import Duration
from toymq_py.consumer_options import LEASE_NUMBER_MAX
from toymq_py.records import IdRange
from toymqctl.broker import Broker
from toymqctl.quantities import CONSUMER, TOPIC, Ids, say_why_fewer


@click.command(short_help="Return messages to be delivered again, or give them up.")
@click.argument("topic", type=TOPIC)
@click.argument("consumer", type=CONSUMER)
@click.argument("ids", type=Ids())
@click.option("--delay", "delay_s", type=Duration(), help="Time until they are delivered again; default: the topic's backoff.")
@click.option("--dead", is_flag=True, help="Move them to the dead letters at once, also what waits for its next delivery.")
@click.option("--lease", type=click.IntRange(1, LEASE_NUMBER_MAX), help="`lease` of `pull --json`: only if it still holds.")
@click.option("--reason", help="Any text; dead letters include it.")
@click.pass_obj
def nack(
    broker: Broker,
    topic: str,
    consumer: str,
    ids: tuple[IdRange, ...],
    delay_s: float | None,
    dead: bool,
    lease: int | None,
    reason: str | None,
) -> None:
    """Return IDS (7, 3-9 or 3-9,12) of TOPIC that are in flight to CONSUMER, to be delivered again.

    Prints how many were in flight. With --dead it also takes messages that were delivered before and wait for redelivery; exit
    code 1 when it takes none.
    """
    if dead and delay_s is not None:
        raise click.UsageError("--dead and --delay exclude each other")
    with broker.connect() as client:
        count = client.nack(topic, consumer, ids, delay=delay_s, dead=dead, reason=reason, lease=lease)
    click.echo(f"{'gave up' if dead else 'gave back'} {count}")
    under = "" if lease is None else f" under lease {lease}"
    say_why_fewer(count, ids, f"in flight to {consumer}{under}{', nor given back by it' if dead and lease is None else ''}")
    if dead and not count:
        raise SystemExit(1)
