"""Publishes rows whose value cannot be decoded ("bad rows") to a topic of their own, ``<topic>.bad``, with the reason.

Contract: ADR 0171. Only the broker writes ``<topic>.dlq``, and it moves only messages there that a consumer has leased; a Spark
source leases none. So a bad row is published instead, with the same headers as the broker's dead letters. Its key consists of
topic, incarnation and id, so that a repeated task makes no second copy.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from toymq_py.errors import BadName, PayloadTooLarge
from toymq_py.names import check_name, whole_name
from toymq_spark.batches import KEY_HEADER, Headers
from toymq_spark.broker import RetryingClient
from toymq_spark.errors import BadValue
from toymq_spark.options import BrokerAddress

REASON_HEADER, ERROR_TYPE_HEADER, ATTEMPTS_HEADER = "toymq-reason", "toymq-error-type", "toymq-attempts"
ERROR_HEADER, ORIGIN_TOPIC_HEADER, ORIGIN_ID_HEADER = "toymq-error", "toymq-origin-topic", "toymq-origin-id"
"""Headers of a dead letter (delivery.md)."""
LETTER_KEY = "spark-bad"
ERROR_TYPE = "BadValue"
BAD_ROWS_TOPIC = ".bad"
"""Behind the name of a topic: where its bad rows go."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A bad row to publish. ``reason`` is a general text, the same for many rows; ``error`` is about this row."""

    offset: int
    key: bytes | None
    value: bytes
    headers: Headers | None
    reason: str
    error: str


class LetterBox:
    """Publishes a topic's bad rows, which could not be decoded, to its ``.bad`` topic. Connects for the first one."""

    def __init__(self, address: BrokerAddress, topic: str, incarnation: str | None) -> None:
        """Check that the topic can have a ``.bad`` topic. Raises: BadValue."""
        if topic.endswith(BAD_ROWS_TOPIC):
            raise BadValue(
                f"badRows=deadletter: {topic} has bad rows itself: read it with badRows=null, or leave it out of the pattern"
            )
        try:
            check_name("topic", f"{whole_name(topic)}{BAD_ROWS_TOPIC}")
        except BadName as error:
            raise BadValue(f"badRows=deadletter: {error}") from None
        self._broker = RetryingClient(address)
        self._topic = topic
        self._incarnation = incarnation or "-"

    def send(self, letters: list[Letter]) -> None:
        """Publish bad rows, and return when all are stored. Raises: BadValue, OSError, ToymqError."""
        target = f"{whole_name(self._topic)}{BAD_ROWS_TOPIC}"  # of all partitions together
        items = [(self.key(letter.offset), letter.value, letter_headers(self._topic, letter)) for letter in letters]
        try:
            # Also after a lost connection: what was stored is known by its key.
            self._broker.call(f"publishing to {target}", lambda client: list(client.pub_many(target, items)))
        except PayloadTooLarge as error:
            largest = max(letters, key=lambda letter: len(letter.value))
            raise BadValue(
                f"topic {self._topic}, offset {largest.offset}: {largest.error}, and with the reason it is too large: {error}"
            ) from None

    def key(self, offset: int) -> str:
        return f"{LETTER_KEY}:{self._topic}:{self._incarnation}:{offset}"

    def close(self) -> None:
        self._broker.close()


def letter_headers(topic: str, letter: Letter) -> Mapping[str, str]:
    """Return the headers for a bad row: those of the row, then those of a dead letter. Headers that a client cannot send
    (without a name, or a line without a colon) are left out."""
    found = {
        name: value.decode("utf-8", "replace").replace("\r", " ")
        for name, value in letter.headers or ()
        if name and value is not None and name.isprintable()
    }
    if letter.key is not None and b"\n" not in letter.key:
        found[KEY_HEADER] = letter.key.decode("utf-8", "replace").replace("\r", " ")
    return found | {
        ORIGIN_TOPIC_HEADER: topic, ORIGIN_ID_HEADER: str(letter.offset), REASON_HEADER: letter.reason,
        ERROR_TYPE_HEADER: ERROR_TYPE, ERROR_HEADER: letter.error,
    }  # fmt: skip
