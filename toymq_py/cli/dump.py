"""``toymq dump``: print the records of a topic."""

import base64
import json

import click

from toymq_py import terminal
from toymq_py.errors import DataDirectoryError
from toymq_py.names import PARTITION_MARK
from toymq_py.partitions import wholes_of
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.offline.dump import dump_topic
from toymq_py.storage.record import (
    ATTRIBUTE_DELIVER_AT,
    ATTRIBUTE_EXPIRES_AT,
    ATTRIBUTE_HEADERS,
    ATTRIBUTE_SEQUENCE,
    Frame,
)
from toymq_py.storage.topic_directories import topic_names
from toymq_py.storage.workers_file import check_undivided

_NAMES = {
    ATTRIBUTE_DELIVER_AT: "deliver_at_ns",
    ATTRIBUTE_EXPIRES_AT: "expires_at_ns",
    ATTRIBUTE_SEQUENCE: "sequence",
}


def as_json(frame: Frame) -> dict[str, object]:
    """A record as plain values; bytes as text where they are UTF-8, otherwise in base64 under ``<name>_b64``."""
    row: dict[str, object] = {"id": frame.msg_id, "ts_ns": frame.ts_ns}
    if frame.key:
        row["key"] = frame.key.decode("latin-1")
    for tag, raw in sorted(frame.attributes.items()):
        if tag == ATTRIBUTE_HEADERS:
            _put(row, "headers", raw)
        elif tag in _NAMES:
            row[_NAMES[tag]] = frame.number(tag)
        else:
            row[f"attribute_{tag}_b64"] = base64.b64encode(raw).decode()
    _put(row, "payload", frame.payload)
    return row


def _put(row: dict[str, object], name: str, value: bytes) -> None:
    try:
        row[name] = value.decode()
    except UnicodeDecodeError:
        row[f"{name}_b64"] = base64.b64encode(value).decode()


@click.command(short_help="Print the records of a topic from a data directory.")
@click.argument("directory")
@click.argument("topic")
@click.option("--from", "from_id", type=click.IntRange(min=0), default=0, show_default=True, help="First id.")
@click.option("--max", "max_count", type=click.IntRange(min=0), help="Print at most this many records.")
@click.option("--format", "form", type=click.Choice(["json", "raw"]), default="json", show_default=True)
def dump(directory: str, topic: str, from_id: int, max_count: int | None, form: str) -> None:
    """Print the records of a TOPIC from a data DIRECTORY, one a line, with a note where records are missing.

    Only reads: the broker may run. `raw` writes the payloads alone, each followed by a newline.

    `headers` is one text with a line `name: value` for each. A `key` that begins with `~seq~` was made by the client, for a
    message without a key; `sequence` is its number there.

    \b
        toymq dump ./data orders --from 1000 --max 10
    """
    path = f"{directory}/topics/{topic}"
    fs = RealFileSystem()
    if not fs.is_dir(path):
        check_undivided(fs, directory)
        least = wholes_of(topic_names(fs, directory)).get(topic)
        part = f"it is partitioned, name one, such as {topic}{PARTITION_MARK}{(least or 1) - 1}"
        remedy = f"its topics are in {directory}/topics" if least is None else part
        raise DataDirectoryError(f"there is no topic {topic} in {directory}: {remedy}")
    left = max_count
    for item in dump_topic(fs, path):
        if isinstance(item, Frame):
            if item.msg_id < from_id:
                continue
            if left is not None:
                if left == 0:
                    return
                left -= 1
            if form == "raw":
                terminal.write(item.payload + b"\n", flush=False)
            else:
                click.echo(json.dumps(as_json(item)))
        elif form == "json":
            click.echo(json.dumps({"note": item}))
