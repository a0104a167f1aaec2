"""The load generator: one thread, epoll, little work per message. Independent of a broker's wire format (``frames``)."""

import select
import socket
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence

from toymq_bench.errors import BenchError
from toymq_bench.frames import Consuming, Producing

_BUFFER = bytearray(1 << 20)
"""Buffer of all reads: one thread, which copies each read at once."""
SILENCE_S = 30.0
"""Time without any data after which a broker counts as dead."""
BEHIND_MAX = 2_000_000
"""Unanswered publishes at a fixed rate beyond which the broker does not keep up: latencies would only grow with the run."""


def now_us() -> int:
    """Return a monotonic clock's time in microseconds."""
    return time.perf_counter_ns() // 1000


class Meter:
    """The counters of a load. ``publish_us`` and ``delivery_us`` count latencies by microsecond."""

    def __init__(self, *, budget: int | None = None, backlog_max: int | None = None) -> None:
        """
        Args:
            budget: most publishes in total; None: unlimited.
            backlog_max: most publishes that are not delivered yet; None: unlimited.
        """
        self.budget = budget
        self.backlog_max = backlog_max
        self.sent = 0
        """Since the start, like ``received``; the other counters since ``reset``."""
        self.received = 0
        self.reset()

    def reset(self) -> None:
        """Set the counters to zero at the end of the warm-up."""
        self.acked = 0
        self.delivered = 0
        self.publish_us: defaultdict[int, int] = defaultdict(int)
        self.delivery_us: defaultdict[int, int] = defaultdict(int)

    def allowance(self, wanted: int) -> int:
        """How many of ``wanted`` publishes may be sent now; 0 or less: none."""
        if self.budget is not None:
            wanted = min(wanted, self.budget - self.sent)
        if self.backlog_max is not None:
            wanted = min(wanted, self.backlog_max - (self.sent - self.received))
        return wanted


class Schedule:
    """Fixed times at which a connection publishes without waiting for replies: an open loop.

    A latency counts from the intended time, not from the time of sending. So a stall of a second delays every message that
    was due in that second (no coordinated omission).
    """

    def __init__(self, start_us: float, interval_us: float) -> None:
        self._next_us = start_us
        self._interval_us = interval_us

    def due(self, now: int) -> list[int]:
        """Return the intended send times up to ``now``, in µs; each is returned once."""
        times: list[int] = []
        while self._next_us <= now:
            times.append(int(self._next_us))
            self._next_us += self._interval_us
        return times

    @property
    def next_us(self) -> float:
        """The next intended send time, in µs."""
        return self._next_us


class Link:
    """A non-blocking connection that buffers what the socket did not take."""

    __slots__ = ("_read_into", "_unsent", "_view", "socket")

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self._unsent = b""
        # One buffer for all reads: a new one per read costs more than a small message.
        self._view = memoryview(_BUFFER)

    @property
    def blocked(self) -> bool:
        """Whether unsent data waits for room in the socket."""
        return bool(self._unsent)

    def send(self, data: bytes) -> None:
        self._unsent += data
        self.flush()

    def flush(self) -> None:
        try:
            sent = self.socket.send(self._unsent)
        except BlockingIOError:
            return
        self._unsent = b"" if sent == len(self._unsent) else self._unsent[sent:]

    def read(self) -> bytes:
        """Read without waiting. Raises: BenchError at the end of the stream."""
        try:
            count = self.socket.recv_into(self._view)
        except BlockingIOError:
            return b""
        if not count:
            raise BenchError("the broker closed a connection")
        return bytes(self._view[:count])


class Publisher(Link):
    """A publishing connection with up to ``window`` unanswered messages (closed loop), or with a schedule (open loop)."""

    __slots__ = ("_last_us", "_meter", "_sent_at", "_window", "_wire", "outstanding", "schedule")

    def __init__(
        self, connection: socket.socket, wire: Producing, meter: Meter, window: int, schedule: Schedule | None = None
    ) -> None:
        super().__init__(connection)
        self.schedule = schedule
        self._wire = wire
        self._meter = meter
        self._window = window
        self.outstanding = 0
        """Publishes without a reply."""
        self._sent_at: deque[tuple[int, int]] = deque()
        """(send time, how many): one entry per block."""
        self._last_us = 0

    def publish(self, now: int) -> None:
        """Send the publishes that the window or the schedule allows now. Raises: BenchError when the broker falls too far
        behind the schedule."""
        if self.schedule is not None:
            for intended_us in self.schedule.due(now):
                self._block(1, intended_us)
            if self.outstanding > BEHIND_MAX:
                raise BenchError("the broker does not keep up with this --rate: choose a lower one")
        else:
            while not self._unsent and (count := self._meter.allowance(self._window - self.outstanding)) > 0:
                self._block(min(count, self._wire.template.count), now)

    def _block(self, count: int, stamp_us: int) -> None:
        # Stamps are part of the keys: each block of a connection needs its own.
        if stamp_us <= self._last_us:
            stamp_us = self._last_us + 1
        self._last_us = stamp_us
        self._sent_at.append((stamp_us, count))
        self.outstanding += count
        self._meter.sent += count
        self.send(self._wire.template.block(count, stamp_us))

    def on_readable(self, now: int) -> None:
        """Count replies. Raises: BenchError."""
        count = self._wire.replies(self.read())
        meter = self._meter
        meter.acked += count
        self.outstanding -= count
        if self.outstanding < 0:
            raise BenchError("more replies than publishes")
        while count:
            stamp_us, left = self._sent_at.popleft()
            if left > count:
                self._sent_at.appendleft((stamp_us, left - count))
                left = count
            meter.publish_us[now - stamp_us] += left
            count -= left


class Subscriber(Link):
    """A consuming connection; its wire format acks every delivery."""

    __slots__ = ("_meter", "_wire")

    def __init__(self, connection: socket.socket, wire: Consuming, meter: Meter) -> None:
        super().__init__(connection)
        self._wire = wire
        self._meter = meter

    def publish(self, now: int) -> None:
        """Do nothing: a subscriber does not publish."""

    def on_readable(self, now: int) -> None:
        """Count deliveries and acknowledge them. Raises: BenchError."""
        chunk = self._wire.deliveries(self.read())
        if chunk.answer:
            self.send(chunk.answer)
        if not chunk.stamps:
            return
        self._meter.received += len(chunk.stamps)
        self._meter.delivered += len(chunk.stamps)
        for stamp, count in Counter(chunk.stamps).items():
            self._meter.delivery_us[now - int(stamp, 16)] += count


class Load:
    """Publishers and subscribers in one event loop. A context manager, which closes the connections at its end."""

    def __init__(self, publishers: Sequence[Publisher], subscribers: Sequence[Subscriber], meter: Meter) -> None:
        self._publishers = publishers
        self._subscribers = subscribers
        links: list[Publisher | Subscriber] = [*publishers, *subscribers]
        self._links = {link.socket.fileno(): link for link in links}
        self._meter = meter
        self._paced = [publisher for publisher in publishers if publisher.schedule is not None]
        self._epoll = select.epoll()
        self._writing: set[int] = set()
        for descriptor in self._links:
            self._epoll.register(descriptor, select.EPOLLIN)

    def __enter__(self) -> "Load":
        return self

    def __exit__(self, *_: object) -> None:
        self._epoll.close()
        for link in self._links.values():
            link.socket.close()

    @property
    def has_begun(self) -> bool:
        """Whether, since the counters were reset, at least one publish and one delivery were completed (of the kinds that the
        load has)."""
        return bool((self._meter.acked or not self._publishers) and (self._meter.delivered or not self._subscribers))

    def run(self, until: Callable[[int], bool]) -> int:
        """Drive the load until ``until(now_us)`` is true, which is checked after every turn of the loop, and return that time.
        A later call goes on.

        Raises: BenchError, also when no bytes arrive for ``SILENCE_S`` seconds.
        """
        now = heard_us = now_us()
        links = self._links
        # Publishers that wait for deliveries, or for their time, get no event of their own.
        others = self._publishers if self._meter.backlog_max is not None else self._paced
        for publisher in self._publishers:
            self._publish(publisher, now)
        while not until(now):
            events = self._wait(now)
            now = now_us()
            for descriptor, event in events:
                link = links[descriptor]
                if event & select.EPOLLOUT:
                    link.flush()
                if event & ~select.EPOLLOUT:
                    link.on_readable(now)
                link.publish(now)
                if link.blocked is not (descriptor in self._writing):
                    self._watch(link)
            if events:
                heard_us = now
            elif now - heard_us > SILENCE_S * 1e6:
                raise BenchError(f"no data from the broker for {SILENCE_S:.0f} s")
            for publisher in others:
                self._publish(publisher, now)
        return now

    def _wait(self, now: int) -> list[tuple[int, int]]:
        if self._paced:
            due_us = min(publisher.schedule.next_us for publisher in self._paced if publisher.schedule is not None)
            # epoll waits in milliseconds; select is finer, and takes an epoll descriptor.
            select.select([self._epoll.fileno()], [], [], min(max((due_us - now) / 1e6, 0), 0.05))
            return self._epoll.poll(0)
        return self._epoll.poll(0.05)

    def _publish(self, publisher: Publisher, now: int) -> None:
        publisher.publish(now)
        self._watch(publisher)

    def _watch(self, link: Link) -> None:
        descriptor = link.socket.fileno()
        if link.blocked != (descriptor in self._writing):
            self._writing ^= {descriptor}
            self._epoll.modify(descriptor, select.EPOLLIN | (select.EPOLLOUT if link.blocked else 0))
