"""``toymqctl completion``: prints a completion script for a shell."""

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

_SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command(short_help="Print a completion script for a shell.")
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a completion script for SHELL: commands, options, topics and consumers.

    \b
        bash   echo 'eval "$(toymqctl completion bash)"' >> ~/.bashrc
        zsh    echo 'eval "$(toymqctl completion zsh)"' >> ~/.zshrc
        fish   toymqctl completion fish > ~/.config/fish/completions/toymqctl.fish
    """
    click.echo(_SHELLS[shell](ctx.find_root().command, {}, "toymqctl", "_TOYMQCTL_COMPLETE").source())
