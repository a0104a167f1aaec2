"""Messages as lines of text, whether they were delivered or fetched."""

import base64
import json
from dataclasses import dataclass

import click

from toymq_client import sync
from toymq_client.message import parse_headers
from toymq_py.model import PRODUCER_PREFIX

FORMATS = ("text", "json", "raw")


@dataclass(frozen=True, slots=True)
class Row:
    """``attempt`` is None where nothing was delivered; ``key`` is b"" for none."""

    topic: str
    id: int
    attempt: int | None
    ts_ns: int
    key: bytes
    headers: dict[str, str]
    payload: bytes

    @classmethod
    def delivered(cls, message: sync.Message) -> "Row":
        return cls(
            message.topic, message.id, message.attempt, message.ts_ns, message.key, message.headers, message.payload
        )  # fmt: skip

    @classmethod
    def fetched(cls, topic: str, msg_id: int, ts_ns: int, key: bytes, headers: bytes, payload: bytes) -> "Row":
        """The name under which a client numbers its publishes is no key."""
        own = key if not key.startswith(PRODUCER_PREFIX) else b""
        return cls(topic, msg_id, None, ts_ns, own, parse_headers(headers), payload)

    def format(self, form: str) -> bytes:
        """One line, with its newline. ``form``: one of ``FORMATS``."""
        if form == "raw":
            return self.payload + b"\n"
        return self._json() if form == "json" else self._text()

    def _json(self) -> bytes:
        row: dict[str, object] = {"topic": self.topic, "id": self.id}
        if self.attempt is not None:
            row["attempt"] = self.attempt
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

    def _text(self) -> bytes:
        key = f" key={self.key.decode('ascii', 'replace')}" if self.key else ""
        again = f" attempt={self.attempt}" if self.attempt is not None and self.attempt > 1 else ""
        return f"{self.id}{key}{again}\t".encode() + self.payload.replace(b"\n", b"\\n") + b"\n"


format_option = click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
json_flag = click.option("--json", "form", flag_value="json", help="The same as --format json.")
