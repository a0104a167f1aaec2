"""``toymqctl ping``: measures the round trip to the broker."""

import click

from toymqctl.broker import Broker
from toymqctl.tables import as_json as json_option
from toymqctl.tables import print_json


@click.command()
@click.option("--count", type=click.IntRange(1), default=1, help="Number of pings.")
@json_option
@click.pass_obj
def ping(broker: Broker, count: int, as_json: bool) -> None:
    """Measure the round trip to the broker. Exit code 1 when it does not answer."""
    with broker.connect() as client:
        for _ in range(count):
            round_trip_s = client.ping()
            if as_json:
                print_json([{"round_trip_s": round_trip_s}])
            else:
                click.echo(f"PONG in {round_trip_s * 1000:.2f} ms")
