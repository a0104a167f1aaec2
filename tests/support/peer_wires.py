"""Feeds deliveries of other brokers to a consumer, in pieces of any size."""

from toymq_bench.frames import Consuming

STAMPS = [b"%012x" % number for number in (7, 7, 9)]


BODIES = [stamp + b"abcdefgh" for stamp in STAMPS]


def arriving(consumer: Consuming, data: bytes, step: int) -> tuple[list[bytes], bytes]:
    """Feed data to a consumer in pieces of ``step`` bytes. Returns: the stamps and the answers."""
    stamps, answer = [], b""
    for start in range(0, len(data), step):
        chunk = consumer.deliveries(data[start : start + step])
        stamps += chunk.stamps
        answer += chunk.answer
    return stamps, answer
