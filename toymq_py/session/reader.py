"""Read one connection: bytes in, runs of commands out. Contract: protocol.md, "Framing"; ADR 0076."""

import asyncio
from collections import deque

from toymq_py.errors import RequestError
from toymq_py.metrics import Metrics
from toymq_py.protocol import Command, ServerConnection
from toymq_py.session.wire_log import WireLog

COMMANDS_PER_RUN = 512
"""Commands that are parsed and handled in one piece."""
INBOX_BYTES_MAX = 1024 * 1024
"""Unparsed bytes at which reading from the socket is paused."""


class Reader:
    """The inbox of a session and its parser. Above ``INBOX_BYTES_MAX``, or less, the transport stops reading."""

    __slots__ = (
        "_commands_per_run", "_inbox", "_inbox_bytes", "_inbox_bytes_max", "_metrics", "_parser", "_transport", "bytes_max",
        "caught_up", "eof", "finished", "paused", "waiting", "wire",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport, metrics: Metrics, max_payload_bytes: int, commands_per_run: int) -> None:
        """
        Args:
            max_payload_bytes: 0 until a token is accepted, so that an anonymous connection holds a line at most.
            commands_per_run: 1 until a token is accepted, so that no command behind HELLO is parsed under the limits before it.
        """
        self._transport = transport
        self._metrics = metrics
        self._parser = ServerConnection(max_payload_bytes)
        self._commands_per_run = commands_per_run
        self._inbox: deque[bytes] | None = None  # an empty one has 760 bytes, and most sessions are idle
        self._inbox_bytes = 0
        self._inbox_bytes_max = INBOX_BYTES_MAX
        self.paused = False
        """Whether the inbox is full: no more is read, and the end of the stream is not noticed."""
        self.bytes_max = 0
        """An upper bound of the unparsed bytes; ``count_bytes`` makes it exact."""
        self.waiting = False
        """Whether ``next_run`` may have something to return."""
        self.caught_up = True
        """Whether all that arrived is parsed, except for an incomplete command."""
        self.eof = False
        self.finished = False
        """Whether the stream ended, and ``next_run`` has returned its last command."""
        self.wire: WireLog | None = None

    def count_bytes(self) -> int:
        """The exact number of unparsed bytes."""
        self.bytes_max = self._parser.buffered_bytes + self._inbox_bytes
        return self.bytes_max

    def received(self, data: bytes) -> None:
        if self._inbox is None:
            self._inbox = deque()
        self._inbox.append(data)
        self.waiting = True
        self.caught_up = False
        length = len(data)
        self.bytes_max += length
        self._inbox_bytes += length
        if self._inbox_bytes > self._inbox_bytes_max:
            self._keep_to_limit()

    def limit_inbox(self, bytes_max: int) -> None:
        """Stop reading, from now on, while more than ``bytes_max`` bytes are unparsed."""
        self._inbox_bytes_max = bytes_max
        self._keep_to_limit()

    def _keep_to_limit(self) -> None:
        too_much = self._inbox_bytes > self._inbox_bytes_max
        if too_much is not self.paused and not self._transport.is_closing():
            self.paused = too_much
            if too_much:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def accept_payloads(self, max_payload_bytes: int) -> None:
        """Take bodies and parse whole runs from now on: a token was accepted."""
        self._parser.limit_payloads(max_payload_bytes)
        self._commands_per_run = COMMANDS_PER_RUN

    def has_body_above(self, size: int) -> bool:
        """Whether a body is arriving of which more than ``size`` bytes are here, and no command before it is left to parse."""
        return self.caught_up and self._parser.body_arrives and self._parser.buffered_bytes > size

    def refuse_body(self, error: RequestError) -> bool:
        """Drop the body that is arriving, and refuse its PUB with ``error``. Returns: whether it was dropped."""
        if self.caught_up and self._parser.refuse_body(error):
            self.caught_up = False
            self.waiting = True
            return True
        return False

    def next_run(self) -> list[Command]:
        """Parse the next commands. Returns: [] when more bytes are needed, or the stream has ended.

        In both cases the queue of received bytes is freed, and made again with the next bytes: with ten thousand idle
        connections its memory adds up.
        """
        parser, inbox = self._parser, self._inbox
        self.caught_up = False
        self.waiting = True
        while True:
            if not parser.starved and (commands := parser.next_commands(self._commands_per_run)):
                if self.wire is not None:
                    self.wire.received(commands)
                return commands
            if inbox:
                data = inbox.popleft()
                self._inbox_bytes -= len(data)
                parser.receive_data(data)
                if self.paused:
                    self._keep_to_limit()
            elif self.eof and parser.ended_torn is None:
                parser.receive_eof()
            else:
                self.caught_up = True
                self.waiting = False
                self._inbox = None
                if self.eof and not self.finished:
                    self.finished = True
                    self._metrics.connections_torn_total += bool(parser.ended_torn)
                return []

    def discard(self) -> None:
        """Drop the inbox and read on: closing a socket with unread bytes resets the connection."""
        self._inbox = None
        self.waiting = False
        if self.paused:
            self._transport.resume_reading()
