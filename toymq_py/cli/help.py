"""``toymq help``: show pages of the documentation, and the help of commands, in a terminal."""

import re

import click

from toymq_py.build import docs_directory
from toymq_py.command_group import CommandGroup
from toymq_py.config.option_schema import did_you_mean
from toymq_py.errors import ConfigError

_LINK = re.compile(r"!?\[([^]]*)\]\([^)\s]*\)")
_HEADING = re.compile(r"^# (.+)$", re.MULTILINE)


def pages() -> dict[str, str]:
    """The pages of the documentation by file name."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(docs_directory().glob("*.md"))}


def title_of(text: str) -> str:
    """The title of a page, its first heading."""
    found = _HEADING.search(text)
    return found[1] if found is not None else ""


def for_a_terminal(text: str) -> str:
    """The text of a page with the targets of its links removed, as a terminal cannot follow them."""
    return _LINK.sub(r"\1", text)


@click.command("help", short_help="Show a page of the documentation.")
@click.argument("topic", required=False)
@click.pass_context
def help_(ctx: click.Context, topic: str | None) -> None:
    """Show a page of the documentation, or the help of a command; without TOPIC: list the pages.

    \b
        toymq help                 every page
        toymq help work-queues
        toymq help serve           as `toymq serve --help`; of toymqctl: `toymqctl pub --help`
    """
    found = pages()
    if topic is None:
        width = max(map(len, found), default=0)
        for name, text in found.items():
            click.echo(f"{name.ljust(width)}  {title_of(text)}")
        return
    name = topic.lower().removesuffix(".md")
    if name in found:
        click.echo_via_pager(for_a_terminal(found[name]))
        return
    group = ctx.find_root().command
    command = group.get_command(ctx, name) if isinstance(group, click.Group) else None
    if command is not None:
        with click.Context(command, info_name=name, parent=ctx.find_root()) as inner:
            click.echo(command.get_help(inner))
        return
    if isinstance(group, CommandGroup) and name in group.meant:
        raise ConfigError(f"{name} is a command of toymqctl: `{group.meant[name]} --help` has its help")
    hint = did_you_mean(name, tuple(found)) or "; `toymq help` lists the pages"
    raise ConfigError(f"there is no page or command {topic[:50]!a}{hint}")
