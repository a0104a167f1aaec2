"""``toymqctl inspect``: the state of a message for each consumer, and why it failed."""

from typing import Any

import click

from toymqctl.broker import Broker
from toymqctl.gateway import ask_of_topic
from toymqctl.quantities import TOPIC, MessageId
from toymqctl.tables import as_json as json_option
from toymqctl.tables import print_json, printable, screen_room, table

_COLUMNS = ("consumer", "state", "attempts", "last failure")


@click.command(short_help="Show a message's state at each consumer, and its last failure.")
@click.argument("topic", type=TOPIC)
@click.argument("msg_id", metavar="ID", type=MessageId())
@json_option
@click.pass_obj
def inspect(broker: Broker, topic: str, msg_id: int, *, as_json: bool) -> None:
    """Show what the message ID of TOPIC is to each consumer (ready, inflight, scheduled: it waits for its time, dying: on its
    way to the dead letters, dead letter: in them, acked), how often it was delivered (- once it is acked: that is not kept),
    and the last failure that was reported.

    `toymqctl tail TOPIC --from ID --max 1` shows the message itself. The broker needs --http or --https.
    """
    found = ask_of_topic(broker, "GET", topic, f"/messages/{msg_id}")
    if as_json:
        print_json([found])
    elif found["consumers"]:
        click.echo(table([_COLUMNS, *map(_row, found["consumers"])], (0, 1, 3), screen_room()))
    else:
        click.echo(f"{topic} has no consumer")


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    failure = found.get("failure", {})
    texts = [str(failure[name]) for name in ("reason", "error_type", "error") if failure.get(name)]
    attempts = "-" if found["attempts"] is None else str(found["attempts"])
    return found["consumer"], _state(found), attempts, printable(": ".join(texts)) or "-"


def _state(found: dict[str, Any]) -> str:
    state, letter = str(found["state"]), found.get("letter")
    if letter is not None:
        return f"dead letter {letter['topic']} {letter['id']}" + (", settled" if letter["settled"] else "")
    return "acked, or a dead letter" if state == "acked_or_dead" else state
