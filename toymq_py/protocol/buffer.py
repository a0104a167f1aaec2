"""The receive buffer of a connection. Appending costs linear time, however the bytes arrive."""


class Buffer:
    """Bytes that arrived and are not consumed yet.

    ``data`` is ``bytes``, the fastest type to parse. After ``want``, arriving pieces are collected in a bytearray and joined
    once, so a body in small pieces costs linear time.
    """

    __slots__ = ("_more", "data", "pos", "wanted")

    def __init__(self) -> None:
        self.data = b""
        self.pos = 0
        self.wanted = 0
        self._more: bytearray | None = None

    def __len__(self) -> int:
        return len(self.data) - self.pos + (len(self._more) if self._more is not None else 0)

    def add(self, data: bytes) -> None:
        if self._more is not None:
            self._more += data
            if len(self) >= self.wanted:
                self.data = self.data[self.pos :] + bytes(self._more) if self.pos < len(self.data) else bytes(self._more)
                self.pos = 0
                self._more = None
        elif self.pos == len(self.data):
            self.data = data
            self.pos = 0
        else:
            self.data = self.data[self.pos :] + data
            self.pos = 0

    def clear(self) -> None:
        """Drop all bytes."""
        self.data, self.pos, self.wanted, self._more = b"", 0, 0, None

    def want(self, length: int) -> None:
        """Announce that ``length`` bytes must arrive before ``data`` changes."""
        self.wanted = length
        if self._more is None and len(self.data) - self.pos < length:
            self._more = bytearray(self.data[self.pos :])
            self.data, self.pos = b"", 0
