"""``toymqctl create``."""

import click

from toymqctl.broker import Broker
from toymqctl.quantities import SETTING
from toymqctl.settings import parse_settings


@click.command(short_help="Create a topic with settings.")
@click.argument("topic")
@click.argument("settings", nargs=-1, type=SETTING, metavar="[NAME=VALUE]...")
@click.pass_obj
def create(broker: Broker, topic: str, settings: tuple[str, ...]) -> None:
    """Create TOPIC with settings, or confirm that it exists with them.

    \b
        toymqctl create orders visibility=2m retain_acked_for=7d

    Publishing and subscribing create topics, too. This command can be repeated. Exit code 1 when TOPIC has other settings.
    """
    with broker.connect() as client:
        client.create(topic, parse_settings(settings))
    click.echo(f"{topic} is there")
