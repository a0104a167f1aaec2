"""A command that places are asked for one after the other: the next ones when those before have done it. ADR 0184, 0198. Pure.

What one refuses is the reply, and those behind it are not asked: a repeat of the command completes what has begun.
"""

from collections.abc import Callable, Sequence

from toymq_py.errors import RequestError
from toymq_py.placement import Place
from toymq_py.protocol import encode_ok

Ask = Callable[[Sequence[Place], Callable[[bytes], None]], None]
"""Asks some places; calls back with their replies as one."""


class Stages:
    """Of one command, whose replies are numbers."""

    def __init__(
        self, stages: Sequence[Sequence[Place]], ask: Ask, done: Callable[[bytes | RequestError], None], *,
        lacking: bool = False,
    ) -> None:  # fmt: skip
        """
        Args:
            done: gets the reply, ``OK`` with the sum of all, or why one cannot be asked.
            lacking: some places may have no such topic.
        """
        self._left = [stage for stage in stages if stage]
        self._ask = ask
        self._done = done
        self._lacking = lacking
        self._totals: list[int] = []
        self._missing = encode_ok(0)
        """The reply when each has said that there is no such topic."""

    def begin(self) -> None:
        """Ask the next ones."""
        if not self._left:
            self._done(encode_ok(sum(self._totals)) if self._totals else self._missing)
            return
        try:
            self._ask(self._left.pop(0), self._answered)
        except RequestError as error:
            self._done(error)

    def _answered(self, reply: bytes) -> None:
        if self._lacking and reply.startswith(b"ERR NO_SUCH_"):
            self._missing = reply
        elif reply.startswith(b"ERR"):
            self._done(reply)
            return
        else:
            self._totals.append(int(reply.split()[1]))
        self.begin()
