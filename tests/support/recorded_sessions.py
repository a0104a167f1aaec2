"""Sessions of RabbitMQ client libraries, as recorded by ``amqp_recorder``: their bytes, and mutated ones."""

import base64
import json
import random
from pathlib import Path

CLIENTS = ("aio-pika", "celery", "dramatiq", "faststream", "kombu", "pika", "taskiq")
RECORDED = Path(__file__).parents[1] / "unit" / "amqp" / "recorded"


def sides(client: str) -> list[tuple[bytes, bool]]:
    """Return the bytes of each side of each connection, and whether that side is the client."""
    found = json.loads((RECORDED / f"{client}.json").read_text())
    return [
        (base64.b64decode(said), of_client)
        for connection in found["connections"] for said, of_client in zip(connection, (True, False), strict=True)
    ]  # fmt: skip


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return the data with some bytes changed, left out, repeated or moved. The first eight bytes, "AMQP" and the version,
    mostly stay."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        at = rng.randrange(8 if rng.random() < 0.95 else 0, len(found))
        size = rng.choice((1, 1, 2, 4, 8, 30))
        kind = rng.randrange(5)
        if kind == 0:
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            found[at : at + size] = rng.choice((b"\xff" * size, bytes(size), b"\x80" + bytes(size - 1)))
        elif kind == 2:
            del found[at : at + size]
        elif kind == 3:
            found[at:at] = found[at : at + size]
        else:
            start = rng.randrange(len(found))
            found[at:at] = found[start : start + size * 10]
    return bytes(found)
