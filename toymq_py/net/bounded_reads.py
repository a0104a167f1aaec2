"""Reads of a connection that bring no more at once than there is room for. ADR 0232.

An event loop reads up to 256 KiB before its protocol can say that it is too much: of a thousand connections that is more than a
small machine has. All connections of one object read into one buffer, whose content is copied before the next read.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable

READ_BYTES = 256 * 1024
"""The most that one read brings, as of uvloop and asyncio."""


class ReadBuffer:
    """What the reads of a server's connections have in common. Belongs to the event loop."""

    __slots__ = ("most", "view")

    def __init__(self, most: Callable[[], int]) -> None:
        """``most``: bytes that a read may bring now, up to ``READ_BYTES``."""
        self.view = memoryview(bytearray(READ_BYTES))
        self.most = most


class BoundedProtocol(asyncio.BufferedProtocol):
    """A protocol with ``data_received``, as of ``asyncio.Protocol``: behind TLS, it is called without a buffer."""

    buffer: ReadBuffer

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer.view[: self.buffer.most()]

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self.buffer.view[:nbytes]))

    @abstractmethod
    def data_received(self, data: bytes) -> None:
        """Take what came."""


AnyProtocol = asyncio.Protocol | BoundedProtocol
