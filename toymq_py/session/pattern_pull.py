"""One PULL of a pattern, for a session of a broker with several workers: each has a part of the topics. ADR 0157.

1. The workers are asked one after the other, without waiting, until one has messages: a PULL gets the messages of one worker,
which alone knows which of them counts an attempt (ADR 0262). A worker that does not answer is passed over after a while;
messages that it leases later are given back.
2. Where none has a message, all are asked at once, each over a connection of its own, to wait. The first that has messages ends
   the others' wait. What one of them leased meanwhile is given back at once, and counts no attempt.

The wait counts from when the command came, as where one process has all topics: of many PULLs of a session, which begin one
after the other, each waits for what is left of its time.

A worker or group that is away is left out; only if all are away, the reply is that error.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from toymq_py.errors import PlacementUnknown
from toymq_py.placement import Place, PlaceLink
from toymq_py.protocol import Command, Nack, Pull, ReplyFrames, encode_command, encode_error, encode_ok, first_word
from toymq_py.session.spread_subscription import PATIENCE_S

AWAY = b"ERR PLACEMENT_UNKNOWN "
"""The beginning of the error that tells that a group does not answer."""
Ask = Callable[[Place, Command, Callable[[bytes], None]], None]
"""Asks a worker, and gives the answer: the deliveries, and the OK or ERR behind them."""
Connect = Callable[[Place, Callable[[list[bytes]], None], Callable[[], None]], PlaceLink]
"""Makes a connection to a worker, which has been greeted. Raises: PlacementUnknown."""
Later = Callable[[float, Callable[[], None]], asyncio.TimerHandle]
"""Calls a function after seconds."""


class PatternPull:
    """One PULL of a pattern: ``begin`` it; ``done`` is called once, with the whole reply."""

    def __init__(
        self, command: Pull, workers: Sequence[Place], ask: Ask, connect: Connect, done: Callable[[bytes], None],
        lost: Callable[[], None], later: Later, now: Callable[[], float],
    ) -> None:  # fmt: skip
        """
        Args:
            workers: in the order in which they are asked.
            now: as ``time`` of an event loop.
            later: as ``call_later`` of an event loop.
            lost: called when a worker dies while its answer is awaited.
        """
        self._command = command
        self._left = list(workers)
        self._there = list(workers)
        self._asked: Place | None = None
        """The place whose answer is missing."""
        self._timer: asyncio.TimerHandle | None = None
        self._later = later
        self._ask = ask
        self._connect = connect
        self._done = done
        self._lost = lost
        self._waits: dict[Place, tuple[PlaceLink, list[bytes]]] = {}
        self._over = False
        self._now = now
        self._until_s = now() + command.wait_ms / 1000
        self._waits_none = not command.wait_ms

    def begin(self) -> None:
        """Ask the next worker."""
        worker = self._asked = self._left.pop(0)
        if len(self._there) > 1:
            self._timer = self._later(PATIENCE_S, self._pass_over)
        try:
            self._ask(worker, replace(self._command, wait_ms=0), partial(self._answered, worker))
        except PlacementUnknown as error:
            self._answered(worker, encode_error(error))

    def _pass_over(self) -> None:
        if self._asked is not None:
            self._there.remove(self._asked)
            self._asked = None
            self._go_on()

    def _stop(self) -> None:
        """Stop waiting for answers."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()

    def _fail(self) -> None:
        self._stop()
        self.end_wait()
        self._lost()

    def _answered(self, worker: Place, answer: bytes) -> None:
        if self._over or worker != self._asked:
            self._give_back(worker, [frame for frame in ReplyFrames().split(answer) if first_word(frame) == b"MSG"])
            return
        last = answer[answer.rfind(b"\n", 0, len(answer) - 1) + 1 :]
        self._asked = None
        if self._timer is not None:
            self._timer.cancel()
        if last.startswith(AWAY) and len(self._there) > 1:
            self._there.remove(worker)
        elif last != encode_ok(0):
            self._finish(answer)
            return
        self._go_on()

    def _go_on(self) -> None:
        if self._left:
            self.begin()
        elif self._waits_none:
            self._finish(encode_ok(0))
        else:
            self._wait()

    def _wait(self) -> None:
        left_ms = round(1000 * (self._until_s - self._now()))
        if left_ms <= 0:
            self._finish(encode_ok(0))
            return
        refusal = encode_ok(0)
        for worker in self._there:
            try:
                self._waits[worker] = self._connect(worker, partial(self._heard, worker), partial(self._ended, worker)), []
            except PlacementUnknown as error:
                refusal = encode_error(error)
        if not self._waits:
            self._finish(refusal)
            return
        self._timer = self._later(left_ms / 1000 + PATIENCE_S, self._time_is_over)
        for link, _ in list(self._waits.values()):
            link.send([encode_command(replace(self._command, wait_ms=left_ms))])

    def _time_is_over(self) -> None:
        """Reply without the workers that have not answered in time: a worker may stand still since it was asked to wait."""
        self._finish(encode_ok(0))

    def _heard(self, worker: Place, more: list[bytes]) -> None:
        link, frames = self._waits[worker]
        frames += [frame for frame in more if first_word(frame) != b"HELLO"]
        if not frames or first_word(frames[-1]) == b"MSG":
            return
        del self._waits[worker]
        link.finish()
        deliveries, last = frames[:-1], frames[-1]
        if self._over:
            self._give_back(worker, deliveries)
        elif deliveries or last.startswith(b"ERR") or not self._waits:
            self._finish(b"".join(frames))

    def _ended(self, worker: Place) -> None:
        if self._waits.pop(worker, None) is not None and not self._over:
            self._fail()

    def _finish(self, reply: bytes) -> None:
        self._stop()
        self.end_wait()
        self._done(reply)

    def end_wait(self) -> bool:
        """Answer the PULL if it waits, and keep it from waiting later. Returns: False when it was called before."""
        ends, self._waits_none = not self._waits_none, True
        for link, _ in list(self._waits.values()):
            link.finish()
        return ends

    def close(self) -> None:
        """End the PULL: the session has ended."""
        self._stop()
        for link, _ in list(self._waits.values()):
            link.close()
        self._waits.clear()

    def _give_back(self, worker: Place, deliveries: Sequence[bytes]) -> None:
        for frame in deliveries:
            _, topic, msg_id, *_rest = frame.split(b" ", 3)
            place = int(msg_id)
            nack = Nack(topic.decode(), self._command.consumer, ((place, place),), uncounted=True, lease=self._command.lease)
            with suppress(PlacementUnknown):  # then its lease ends by its time
                self._ask(worker, nack, lambda answer: None)
