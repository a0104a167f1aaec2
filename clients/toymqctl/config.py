"""``toymqctl config``."""

import click

from toymqctl.broker import Broker
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
    if as_json:
        print_json([found])
    else:
        click.echo("\n".join(format_settings(found)) or f"{topic} has no settings of its own: the broker's defaults hold")
