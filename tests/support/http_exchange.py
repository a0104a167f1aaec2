"""Sends raw bytes to an HTTP server."""

import asyncio
import json

CODED = b"POST /v1/topics/t/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: %b\r\n\r\n1\r\nx\r\n0\r\n\r\n"
"""A publish whose body has that transfer coding: one chunk, and no trailer."""


async def exchange(port: int, data: bytes, *, until_closed: bool = True, within_s: float = 10) -> bytes:
    """Send bytes to the gateway, and return all that comes back until it closes. Raises: TimeoutError."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(within_s):
        try:
            writer.write(data)
            return await reader.read() if until_closed else await reader.readuntil(b"}")
        finally:
            writer.close()


def problem_of(response: bytes) -> tuple[int, str]:
    head, _, body = response.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json.loads(body)["code"]
