"""``toymqctl config``: shows and changes the settings of a topic."""

import click

from toymq_py.partitions import PARTITIONS, differing_settings
from toymqctl.broker import Broker
from toymqctl.partitions import parts_of
from toymqctl.quantities import SETTING, TOPIC
from toymqctl.settings import format_settings, in_wire_units, parse_settings
from toymqctl.tables import as_json as json_option
from toymqctl.tables import print_json


@click.command(short_help="Show and change the settings of a topic.")
@click.argument("topic", type=TOPIC)
@click.argument("settings", nargs=-1, type=SETTING, metavar="[NAME=VALUE]...")
@json_option
@click.pass_obj
def config(broker: Broker, topic: str, settings: tuple[str, ...], as_json: bool) -> None:
    """Change settings of TOPIC, and show those that are set; NAME=default unsets one.

    \b
        toymqctl config orders visibility=2m dedupe_keys=default

    Durations take 250ms, 30s, 24h, 7d; sizes take bytes or 64MiB. With --json they are milliseconds and bytes.
    """
    with broker.connect() as client:
        found = in_wire_units(client.config(topic, parse_settings(settings)))
        parts = parts_of(client.describe(topic)) if PARTITIONS in found and not settings and not as_json else []
    if as_json:
        print_json([found])
    else:
        click.echo("\n".join(format_settings(found)) or f"{topic} has no settings of its own: the broker's defaults hold")
        if differ := differing_settings([part["settings"] for part in parts]):
            click.echo(f"{', '.join(differ)}: not the same in all partitions, see `toymqctl describe {topic}`", err=True)
