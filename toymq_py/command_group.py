"""A click group that reports wrong usage as one line on stderr, with a suggestion and exit code 2. For every command line.

Apart from ``command_line``, which a broker loads without click.
"""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, ClassVar, NoReturn

import click

CLOSE = 0.75
"""The similarity (0 to 1) of two words from which a command is suggested: `get` must not suggest `forget`, which deletes."""
ABBREVIATION_MIN = 3
SENTENCE_MAX = 300
"""Most characters of a command's help in a list: its first sentence whole, over lines where it must. Click cuts it at the
width."""
INTERRUPTED, USAGE = 130, 2
OTHER_OPTIONS = {
    "--port": "--listen HOST:PORT", "--host": "--listen HOST:PORT", "--bind": "--listen HOST:PORT", "--count": "--max N",
}  # fmt: skip
"""Options of other programs, and the option to write here, where the command has it."""


class CommandGroup(click.Group):
    """A command group that reports wrong usage of itself and of all commands below it in one line."""

    meant: ClassVar[Mapping[str, str]] = {}
    """Commands that do not exist here, and what to write instead, whole: another program has it, or it has another name."""
    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Commands that do not exist here, and the end of a sentence that tells where to find what they would show."""
    sections: ClassVar[Mapping[str, Sequence[str]]] = {}
    """The commands by purpose, as the help lists them; empty for one list."""
    places: ClassVar[Mapping[str, str]] = {}
    """Commands that are loaded when they are asked for, each with its place, ``module:attribute``: a start need not import the
    modules of the other commands."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.places:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.places[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of the help, not of the alphabet."""
        return [name for names in self.sections.values() for name in names] or [*self.places, *self.commands]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands of each section under its heading."""
        width = max(map(len, self.list_commands(ctx)), default=0)
        for heading, names in (self.sections or {"Commands": self.list_commands(ctx)}).items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            rows = [(name.ljust(width), each.get_short_help_str(SENTENCE_MAX)) for name, each in found if each is not None]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the options before the command; wrong usage is reported in one line."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            refuse(self, error, parent)
        except KeyboardInterrupt:  # of which click makes "Aborted!" and 1
            raise SystemExit(INTERRUPTED) from None

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; wrong usage is reported in one line."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            refuse(self, error, ctx)
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None


def said_by(error: OSError) -> str:
    """The operating system's error text, with the file name and without the errno."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def refuse(group: click.Group, error: click.UsageError, ctx: click.Context | None) -> NoReturn:
    """Print a usage error as one line, or the help if there were no arguments. Raises: SystemExit."""
    ctx = error.ctx or ctx
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        raise SystemExit(error.exit_code) from None
    say(group, explain(error, ctx), ctx)


def say(group: click.Group, text: str, ctx: click.Context | None) -> NoReturn:
    """Print the text of a usage error as one line. Raises: SystemExit."""
    path = ctx.command_path if ctx is not None else group.name
    name = ctx.find_root().info_name if ctx is not None else group.name
    click.echo(f"{name}: {' '.join(text.split()).rstrip('.')} (see `{path} --help`)", err=True)
    raise SystemExit(USAGE) from None


def explain(error: click.UsageError, ctx: click.Context | None) -> str:
    """The text of an error, with a remedy where one is known."""
    if ctx is not None and isinstance(error, click.exceptions.NoSuchCommand) and isinstance(ctx.command, click.Group):
        ours = ctx.command if isinstance(ctx.command, CommandGroup) else CommandGroup()
        near = next((f"{ctx.command_path} {name}" for name in _meant(ctx.command, ctx, error.command_name)), None)
        if error.command_name in ours.elsewhere:
            return f"{error.message.rstrip('.')}: {ours.elsewhere[error.command_name]}"
        meant = ours.meant.get(error.command_name, near)
        return error.message.rstrip(".") + (f": did you mean `{meant}`?" if meant else "")
    if ctx is not None and isinstance(error, click.exceptions.NoSuchOption):
        instead = OTHER_OPTIONS.get(error.option_name, "")
        if any(instead.partition(" ")[0] in one.opts for one in ctx.command.params):
            return f"{error.message.rstrip('.').partition(' Did')[0].rstrip('.')}: write `{instead}`"
        if (place := _place_above(error.option_name, ctx)) is not None:
            return f"{error.option_name} goes before the command: `{place}`"
        known = error.possibilities or []  # best first, and some that are far off
        close = get_close_matches(error.option_name, known, cutoff=CLOSE)
        arguments = [one.metavar for one in ctx.command.params if isinstance(one, click.Argument)]
        if not close and "[NAME=VALUE]..." in arguments:
            return f"there is no option {error.option_name}: a setting is `{error.option_name.strip('-').replace('-', '_')}=…`"
        close = close or known[:1]
        return click.exceptions.NoSuchOption(error.option_name, error.message, close).format_message()
    if isinstance(error, click.BadParameter) and error.param is not None and isinstance(error.param.type, click.IntRange):
        return error.format_message().replace("a valid integer range", f"a whole number {_limits(error.param.type)}".rstrip())
    return error.format_message()


def _limits(numbers: click.IntRange) -> str:
    low, high = ("" if end is None else f"{word} {end}" for word, end in (("from", numbers.min), ("to", numbers.max)))
    return f"{low} {high}".strip()


def _place_above(option: str, ctx: click.Context) -> str | None:
    """A command line that shows where a misplaced option belongs, if it is an option of a parent command; else None."""
    below, above = [ctx.info_name or ""], ctx.parent
    while above is not None:
        if any(option in one.opts for one in above.command.params):
            return f"{above.command_path} {option} … {' '.join(below)}"
        below.insert(0, above.info_name or "")
        above = above.parent
    return None


def _meant(group: click.Group, ctx: click.Context, word: str) -> Iterator[str]:
    """Suggestions for a command that does not exist, best first."""
    names = group.list_commands(ctx)
    yield from get_close_matches(word, names, cutoff=CLOSE)
    for name in names:
        if min(len(word), len(name)) >= ABBREVIATION_MIN and (word.startswith(name) or name.startswith(word)):
            yield name
    for name in names:
        command = group.get_command(ctx, name)
        if isinstance(command, click.Group) and word in command.list_commands(ctx):
            yield f"{name} {word}"
