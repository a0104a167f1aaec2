"""``toymqctl sub``."""

import base64
import json
import re
import sys
from collections.abc import Callable

import click

from toymq_client import RequestTimeout, sync

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?\Z", re.ASCII)
_UNITS_S = {"ms": 0.001, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


class Seconds(click.ParamType[float]):
    """``500ms``, ``5s``, ``2m`` or plain seconds."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = _DURATION.match(str(value))
        if match is None:
            self.fail(f"{value!r} is no duration: write 500ms, 5s or 2m", param, ctx)
        return float(match[1]) * _UNITS_S[match[2]]


def format_message(message: sync.Message, form: str) -> bytes:
    """One line, with its newline."""
    if form == "raw":
        return message.payload + b"\n"
    if form == "json":
        row: dict[str, object] = {"topic": message.topic, "id": message.id, "attempt": message.attempt, "ts_ns": message.ts_ns}
        if message.key:
            row["key"] = message.key.decode("ascii", "replace")
        if message.headers:
            row["headers"] = message.headers
        try:
            row["payload"] = message.payload.decode()
        except UnicodeDecodeError:
            row["payload_b64"] = base64.b64encode(message.payload).decode()
        return json.dumps(row).encode() + b"\n"
    key = f" key={message.key.decode('ascii', 'replace')}" if message.key else ""
    again = f" attempt={message.attempt}" if message.attempt > 1 else ""
    return f"{message.id}{key}{again}\t".encode() + message.payload.replace(b"\n", b"\\n") + b"\n"


@click.command()
@click.argument("topic")
@click.option("--consumer", default="toymqctl", show_default=True, help="Durable name: its place is kept.")
@click.option("--no-ack", is_flag=True, help="Only look: everything comes again after this session.")
@click.option("--max", "max_count", type=click.IntRange(1), help="End after so many messages.")
@click.option("--timeout", "timeout_s", type=Seconds(), help="End when nothing came for so long.")
@click.option("--start", help="Where a new consumer begins: earliest (default), latest, an id, @unix-ms.")
@click.option("--window", type=click.IntRange(1), default=1024, show_default=True, help="Messages in flight.")
@click.option("--format", "form", type=click.Choice(["text", "json", "raw"]), default="text", show_default=True)
@click.pass_obj
def sub(
    connect: Callable[[], sync.Client],
    topic: str,
    consumer: str,
    no_ack: bool,
    max_count: int | None,
    timeout_s: float | None,
    start: str | None,
    window: int,
    form: str,
) -> None:
    """Print the messages of TOPIC, one a line, and ack each after it was printed. Ends with Ctrl-C.

    \b
        toymqctl sub orders --consumer billing
        toymqctl sub orders --format json --timeout 1s
    """
    out = sys.stdout.buffer
    count = 0
    with connect() as client:
        window = min(window, max_count) if max_count is not None else window
        subscription = client.sub(topic, consumer, window=window, start=start)
        while max_count is None or count < max_count:
            try:
                message = subscription.next(timeout_s)
            except RequestTimeout:
                return
            out.write(format_message(message, form))
            out.flush()
            count += 1
            if not no_ack:
                message.ack()
