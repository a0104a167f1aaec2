"""``toymqctl create``: creates a topic with settings."""

import click

from toymq_py.partitions import PARTITIONS, PARTITIONS_MAX
from toymqctl.broker import Broker
from toymqctl.new_topics import is_new
from toymqctl.quantities import SETTING
from toymqctl.settings import SETTINGS, parse_settings

SAID = {True: "is made", False: "was there already", None: "is there"}
"""By whether it is new: the reply to CREATE does not tell."""


@click.command(
    short_help="Create a topic with settings.",
    epilog=f"Settings: {', '.join(SETTINGS)}. In a cluster with groups group=NAME says which one gets the topic.",
)
@click.argument("topic")
@click.argument("settings", nargs=-1, type=SETTING, metavar="[NAME=VALUE]...")
@click.option(
    "--partitions", type=click.IntRange(1, PARTITIONS_MAX), help="Divide it into so many topics, TOPIC#0 and on, for good."
)  # fmt: skip
@click.pass_obj
def create(broker: Broker, topic: str, settings: tuple[str, ...], partitions: int | None) -> None:
    """Create TOPIC with settings, or confirm that it exists with them.

    \b
        toymqctl create orders visibility=2m retain_acked_for=7d
        toymqctl create orders --partitions 8
        toymqctl create orders group=b         in a cluster with groups: in group b

    Publishing and subscribing create topics, too. This command can be repeated, and says whether TOPIC existed before. Exit
    code 1 when TOPIC has other settings.
    """
    with broker.connect() as client:
        found = parse_settings(settings)
        if partitions is not None:
            found[PARTITIONS] = str(partitions)
        made = is_new(topic, lambda: client.describe(topic))
        client.create(topic, found)
    click.echo(f"{topic} {SAID[made]}")
