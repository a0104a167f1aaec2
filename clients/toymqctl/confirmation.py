"""The question before what cannot be taken back."""

import click


def confirm(verb: str, participle: str, what: str) -> None:
    """Ask on stderr whether to ``verb`` it. Ends the command with 1 for no. Raises: UsageError when nobody answers."""
    try:
        sure = click.confirm(f"{verb} {what}?", err=True)
    except click.Abort:
        raise click.UsageError(f"nobody answered and nothing was {participle}; --yes {verb}s without asking") from None
    if not sure:
        click.echo(f"toymqctl: nothing was {participle}", err=True)
        raise SystemExit(1)
