"""``toymqctl connections``: lists the broker's connections, and closes one."""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import click

from toymqctl.broker import Broker
from toymqctl.gateway import gateway_of, path_of, say_part
from toymqctl.tables import as_json as json_option
from toymqctl.tables import duration, fitting, print_json, screen_room, size

_COLUMNS = ("connection", "name", "address", "token", "subscriptions", "inflight", "received", "sent", "since")
CUT = (1, 3, 4)
"""Columns that a narrow terminal cuts. Not the id, which `close` takes, nor the address."""
SPARE = (3, 6, 7)
"""Columns that a narrow terminal does not have: token, received, sent."""
LEAST = 16
"""Characters of a cut text: a topic as a consumer."""
LISTED = 100


@click.group(invoke_without_command=True)
@click.option("--search", help="Part of an id, an address, a token's name, a client's name, a topic or a consumer.")
@click.option("-n", "--max", "most", type=click.IntRange(1, 1000), default=LISTED, help="Show at most this many, the newest.")
@json_option
@click.pass_context
def connections(ctx: click.Context, search: str | None, most: int, *, as_json: bool) -> None:
    """List the open connections of all protocols, the newest first.

    \b
        toymqctl connections
        toymqctl connections --search billing
        toymqctl connections close toymq-7

    `received` and `sent` are bytes since the connection was opened, seen from the broker. The broker needs --http or --https.
    With --workers or groups, the list has the connections of one worker or group only; --http-url chooses another.
    """
    if ctx.invoked_subcommand is not None:
        return
    query = {"max": most} | ({"search": search} if search else {})
    found = gateway_of(ctx.obj).ask("GET", f"/v1/connections?{urlencode(query)}")
    if as_json:
        print_json(found["connections"])
        return
    say_part(found, "connections")
    if not found["connections"]:
        click.echo("no connection matches")
        return
    now_s = datetime.now(UTC).timestamp()
    rows = [_COLUMNS, *(_row(each, now_s) for each in found["connections"])]
    whole = [max(len(row[column]) for row in rows) for column in (0, 2)]
    aligned = [(row[0].ljust(whole[0]), row[1], row[2].ljust(whole[1]), *row[3:]) for row in rows]
    click.echo(fitting(aligned, CUT, screen_room(), SPARE, least=LEAST))
    if found["more"]:
        click.echo(f"toymqctl: {found['open']} are open: --max shows more, --search finds", err=True)


def _row(found: dict[str, Any], now_s: float) -> tuple[str, ...]:
    subscriptions = ", ".join(map(_subscription, found["subscriptions"]))
    more = found["subscriptions_total"] - len(found["subscriptions"])
    shown = (subscriptions + (f" and {more} more" if more > 0 else "")) or "-"
    if lacks := found.get("lacks"):
        shown += f" (without {', '.join(lacks)})"
    return (
        found["connection"] + (" (own)" if found["own"] else ""), found["name"] or "-", found["address"] or "Unix socket",
        found["token"] or "-", shown, str(found["inflight"]),
        *("-" if found[name] is None else size(found[name]) for name in ("received_bytes", "sent_bytes")),
        duration(max(now_s - found["since_ms"] / 1000, 0.0)),
    )  # fmt: skip


def _subscription(found: dict[str, Any]) -> str:
    active = found.get("active_in")  # an older broker does not say
    told = "" if active is None else f" (active in {' '.join(active)})" if active else " (not active)"
    return f"{found['topic']} as {found['consumer']}{told}"


@connections.command()
@click.argument("connection")
@click.pass_obj
def close(broker: Broker, connection: str) -> None:
    """Close CONNECTION, such as toymq-7. Messages that it has not acked become ready again; its client may reconnect."""
    gateway_of(broker).ask("DELETE", path_of("connections", connection))
    click.echo(f"closed {connection}")
