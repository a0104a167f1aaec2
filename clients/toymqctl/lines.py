"""Formats messages, delivered or fetched, as lines of text."""

import base64
import json
from dataclasses import dataclass

import click

from toymq import sync
from toymq.message import parse_headers
from toymq_py.names import is_dead_letters
from toymq_py.records import PRODUCER_PREFIX

FORMATS = ("text", "json", "raw", "bytes")
REDRIVE_KEY = b"redrive:"


def own_key(topic: str, key: bytes, headers: dict[str, str]) -> bytes:
    """Return the key that the publisher gave, b"" for none. In dead letters and redriven messages the record has a key of the
    broker's, and in messages without a key a name that the client made up."""
    if is_dead_letters(topic) or (key.startswith(REDRIVE_KEY) and "toymq-redrives" in headers):
        key = headers.get("toymq-origin-key", "").encode()
    return b"" if key.startswith(PRODUCER_PREFIX) else key


@dataclass(frozen=True, slots=True)
class Row:
    """A message to print; ``attempt`` is None for a fetched one, ``key`` b"" for none."""

    topic: str
    id: int
    attempt: int | None
    ts_ns: int
    key: bytes
    headers: dict[str, str]
    payload: bytes
    lease: int | None = None
    """Of a pulled message."""

    @classmethod
    def delivered(cls, message: sync.Message) -> "Row":
        key = own_key(message.topic, message.key, message.headers)
        return cls(message.topic, message.id, message.attempt, message.ts_ns, key, message.headers, message.payload)

    @classmethod
    def fetched(cls, topic: str, msg_id: int, ts_ns: int, key: bytes, headers: bytes, payload: bytes) -> "Row":
        named = parse_headers(headers)
        return cls(topic, msg_id, None, ts_ns, own_key(topic, key, named), named, payload)

    def format(self, form: str, asked: str | None = None) -> bytes:
        """Format the message as one line, with its newline; for the form "bytes" return the payload alone.

        Args:
            form: one of ``FORMATS``.
            asked: the topic name that the user gave. If it is a pattern or a partitioned topic, the line begins with the
                message's own topic, without which its id means nothing.
        """
        if form == "bytes":
            return self.payload
        if form == "raw":
            return self.payload + b"\n"
        return self._json() if form == "json" else self._text(named=asked not in (None, self.topic))

    def _json(self) -> bytes:
        row: dict[str, object] = {"topic": self.topic, "id": self.id}
        if self.attempt is not None:
            row["attempt"] = self.attempt
        if self.lease is not None:
            row["lease"] = self.lease
        row["ts_ns"] = self.ts_ns
        if self.key:
            row["key"] = self.key.decode("ascii", "replace")
        if self.headers:
            row["headers"] = self.headers
        try:
            row["payload"] = self.payload.decode()
        except UnicodeDecodeError:
            row["payload_b64"] = base64.b64encode(self.payload).decode()
        return json.dumps(row).encode() + b"\n"

    def _text(self, *, named: bool) -> bytes:
        topic = f"{self.topic} " if named else ""
        key = f" key={self.key.decode('ascii', 'replace')}" if self.key else ""
        again = f" attempt={self.attempt}" if self.attempt is not None and self.attempt > 1 else ""
        return f"{topic}{self.id}{key}{again}\t".encode() + self.payload.replace(b"\n", b"\\n") + b"\n"


format_option = click.option(
    "--format", "form", type=click.Choice(FORMATS), default="text",
    help="raw: each payload and a newline; bytes: the payload alone, byte for byte.",
)  # fmt: skip
json_flag = click.option("--json", "form", flag_value="json", help="The same as --format json.")
