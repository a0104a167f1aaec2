"""Confirmation of a command that cannot be undone."""

import click

from toymq import sync
from toymq_py.units import counted

yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def confirm(client: sync.Client, topic: str, verb: str, participle: str) -> None:
    """Ask on stderr before an act on a whole topic; exit with 1 when the answer is no.

    Raises: NoSuchTopic; UsageError when stdin ends without an answer.
    """
    found = client.describe(topic)
    question = f"{verb} {topic}: {counted(found['messages'], 'message')}, {counted(len(found['consumers']), 'consumer')}?"
    try:
        sure = click.confirm(question, err=True)
    except click.Abort:
        raise click.UsageError(f"no answer on stdin, nothing was {participle}: use --yes to {verb} without asking") from None
    if not sure:
        click.echo(f"toymqctl: nothing was {participle}", err=True)
        raise SystemExit(1)
