"""Bounded reads of connections: one read brings no more than there is room for. ADR 0232, 0236.

An event loop reads up to 256 KiB before the protocol can say that it is too much: with a thousand connections that is more
memory than a small machine has. All connections of one ``ReadBuffer`` read into it, and its content is copied before the next
read.
"""

import asyncio
from abc import abstractmethod
from typing import Protocol

READ_BYTES = 256 * 1024
"""The most that one read brings, as of uvloop and asyncio."""


class ReadBuffer:
    """The memory that all reads of a server's connections go to first. Belongs to the event loop."""

    __slots__ = ("memory", "room")

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(READ_BYTES))
        self.room = self.memory
        """The memory that a read may fill."""

    def limit(self, size: int) -> None:
        """Let each read bring at most ``size`` bytes from now on, up to ``READ_BYTES``."""
        if size != len(self.room):
            self.room = self.memory[:size]


class Reads(Protocol):
    """The memory that a connection's reads fill: the ``ReadBuffer``, or less of it for want of room."""

    @property
    def memory(self) -> memoryview: ...
    @property
    def room(self) -> memoryview: ...


class BoundedProtocol(asyncio.BufferedProtocol):
    """A buffered protocol with the ``data_received`` of ``asyncio.Protocol``, which TLS calls directly."""

    buffer: Reads

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.buffer.room

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self.buffer.memory[:nbytes]))

    @abstractmethod
    def data_received(self, data: bytes) -> None:
        """Handle received bytes."""

