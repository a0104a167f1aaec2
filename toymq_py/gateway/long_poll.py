"""A long poll of a topic or pattern, for requests and webhooks. Contract: delivery.md. Knows no HTTP."""

import asyncio
from collections.abc import Callable
from functools import partial

from toymq_py.broker import Broker
from toymq_py.broker_waits import made, stored
from toymq_py.consumer_options import Mode
from toymq_py.disk_errors import storage_error
from toymq_py.errors import RequestError
from toymq_py.gateway.waiters import Waiting
from toymq_py.lease_number import new_lease_number
from toymq_py.subscription import AnyPoll, PatternPoll
from toymq_py.topic import Delivery

EXAMINED_S = 60.0
"""How long a poll waits, whatever it asked for, while a thread looks how far damage goes."""


class LongPoll:
    """Leases messages once, and can wait for the first one. Leases nothing after ``end``."""

    def __init__(
        self, broker: Broker, waiting: Waiting, name: str, consumer: str, *, visibility_s: float | None,
        mode: Mode | None = None,
    ) -> None:  # fmt: skip
        """Assumes that the names are valid."""
        self._broker = broker
        self._waiting = waiting
        self.name = name
        self._consumer = consumer
        self._visibility_s = visibility_s
        self._mode = mode
        self.lease = new_lease_number()
        """The number of the poll's leases."""
        self.charge: Callable[[int], RequestError | None] = lambda size: None
        """Counts what the polls of a pattern hold (``PatternPoll.on_cost``). Returns: why that is too much."""
        self._refusal: RequestError | None = None
        self._look: Callable[[], None] | None = None
        self._ended = self._wait_over = False

    def end_wait(self) -> None:
        """End the wait: lease the messages that are there."""
        self._wait_over = True
        self._wake()

    def end(self) -> None:
        """End the poll: the client is gone."""
        self._ended = True
        self._wake()

    def _charge(self, size: int) -> None:
        self._refusal = self.charge(size)
        self._wake()

    def _wake(self) -> bool:
        if self._look is None:
            return False  # it takes by itself before it waits
        self._look()
        return True

    async def _registered(self, poll: AnyPoll, wait_s: float) -> None:
        """Wait until the poll's consumer is stored, at most ``wait_s`` unless that is 0: a new consumer begins at the first id,
        even if the disk has not confirmed it yet. Raises: RequestError."""
        if not wait_s:
            await stored(poll.when_registered)
            return
        problem: OSError | RequestError | None = None

        def begin(over: Callable[[], None]) -> Callable[[], None]:
            def told(error: OSError | RequestError | None) -> None:
                nonlocal problem
                problem = error
                over()

            poll.when_registered(told)
            return lambda: None

        await self._waiting.wait_for(begin, wait_s)
        if problem is not None:
            raise problem if isinstance(problem, RequestError) else storage_error(problem)

    def _wait(self, look: Callable[[], None]) -> Callable[[], None]:
        self._look = look
        return self._unwait

    def _unwait(self) -> None:
        self._look = None

    async def poll(
        self, max_count: int, max_bytes: int, wait_s: float, check: Callable[[], None] = lambda: None
    ) -> list[Delivery]:
        """Lease messages, waiting up to ``wait_s`` for the first. Returns [] when none came, or the broker shuts down.

        Args:
            check: called before messages are leased, after each wait and change of rights; an error that it raises ends the
                poll.

        Raises: RequestError, OSError, and what ``check`` raises. When cancelled it has leased nothing.
        """
        begin = partial(
            self._broker.poll, self.name, self._consumer, visibility_s=self._visibility_s, wake=self._wake, mode=self._mode
        )
        poll = await made(begin)
        poll.number = self.lease
        if isinstance(poll, PatternPoll):
            poll.on_cost = self._charge
        time = asyncio.get_running_loop().time
        until = time() + wait_s
        try:
            await self._registered(poll, wait_s)
            while not (self._ended or self._waiting.stopped):
                check()
                if self._refusal is not None:
                    raise self._refusal
                deliveries = poll.take(max_count, max_bytes)
                left_s = 0.0 if self._wait_over else until - time()
                if poll.is_examining:
                    left_s = max(left_s, EXAMINED_S)  # "nothing" would be wrong
                if deliveries or poll.closed or left_s <= 0:
                    return deliveries
                await self._waiting.wait_for(self._wait, left_s, prompt=True)
            return []
        finally:
            poll.close()
