"""The command ``toymqctl top``. It imports the screen only when it runs, since that needs the extra ``tui``."""

import sys

import click

from toymq_py.command_line import missing
from toymqctl.broker import Broker, hide_warnings


@click.command(short_help="Watch a broker on a live screen.")
@click.pass_obj
def top(broker: Broker) -> None:
    """Watch a broker: topics, consumers, rates, backlog, loop, disk. Press ? for the keys.

    Asks once a second, and connects again by itself. Needs the extra `tui`.
    """
    import asyncio  # no other command pays for loading it

    try:
        from toymqctl.top.screen import Top
    except ModuleNotFoundError as error:
        line = missing(error)
        if line is None:
            raise
        raise click.UsageError(f"top {line}") from None
    if not (sys.stdin.isatty() and sys.stderr.isatty()):  # Textual draws on stderr
        raise click.UsageError("top needs a terminal; `toymqctl stats --json` is for programs")
    from toymqctl.top.poller import BrokerFeed

    async def run() -> None:
        async with BrokerFeed(broker) as feed:
            hide_warnings()  # they would be written over the screen, which says them itself
            await Top(feed).run_async()

    asyncio.run(run())
