"""Confirmation of a command that cannot be undone."""

import click


def confirm(verb: str, participle: str, what: str) -> None:
    """Ask on stderr; exit with 1 when the answer is no. Raises: UsageError when stdin ends without an answer."""
    try:
        sure = click.confirm(f"{verb} {what}?", err=True)
    except click.Abort:
        raise click.UsageError(f"no answer on stdin, nothing was {participle}: use --yes to {verb} without asking") from None
    if not sure:
        click.echo(f"toymqctl: nothing was {participle}", err=True)
        raise SystemExit(1)
