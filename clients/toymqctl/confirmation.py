"""Confirmation of a command that cannot be undone."""

import click

from toymq import sync
from toymq_py.errors import PlacementUnknown, RequestError
from toymq_py.units import counted

yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def confirm(client: sync.Client, topic: str, verb: str, participle: str) -> None:
    """Ask on stderr before an act on a whole topic; exit with 1 when the answer is no.

    Raises: NoSuchTopic; UsageError when stdin ends without an answer.
    """
    found = client.describe(topic)
    what = f"{counted(found['messages'], 'message')}, {counted(len(found['consumers']), 'consumer')}"
    ask(f"{verb} {topic}: {what}?", verb, participle)


def is_half_deleted(client: sync.Client, topic: str) -> bool:
    """Whether an interrupted DELETE or CREATE left a partitioned topic that DESCRIBE no longer shows, but that can be deleted.

    Raises: PlacementUnknown: a worker or group does not answer, which a DELETE needs, too.
    """
    try:
        client.describe(topic)
    except PlacementUnknown as error:
        if f"repeat DELETE {topic}" in str(error) or "repeat the CREATE or DELETE of it" in str(error):
            return True
        raise PlacementUnknown(f"{error}; nothing was done") from None
    except RequestError:  # the command is refused, too, or needs less
        return False
    return False


def ask(question: str, verb: str, participle: str) -> None:
    """Ask a question on the terminal; exit with 1 when the answer is no. Raises: UsageError when stdin ends without an
    answer."""
    try:
        sure = click.confirm(question, err=True)
    except click.Abort:
        raise click.UsageError(f"no answer on stdin, nothing was {participle}: use --yes to {verb} without asking") from None
    if not sure:
        click.echo(f"toymqctl: nothing was {participle}", err=True)
        raise SystemExit(1)
