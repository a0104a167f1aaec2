"""``toymqctl ping``."""

from collections.abc import Callable

import click

from toymq_client import sync


@click.command()
@click.option("--count", type=click.IntRange(1), default=1, show_default=True)
@click.pass_obj
def ping(connect: Callable[[], sync.Client], count: int) -> None:
    """Ask whether the broker answers, and how fast. Exit code 1 when it does not."""
    with connect() as client:
        for _ in range(count):
            click.echo(f"PONG in {client.ping() * 1000:.2f} ms")
