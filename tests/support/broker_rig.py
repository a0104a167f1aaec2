"""A broker on a simulated disk, loop and clock, without sessions."""

import random
from collections.abc import Callable
from typing import Any

from tests.support.fake_clock import FakeClock
from tests.support.sim_disk import SimDisk
from tests.support.sim_loop import SimLoop
from toymq_py.broker import ALONE, Broker
from toymq_py.clock import Clock
from toymq_py.config.options import BrokerOptions
from toymq_py.consumer_options import Mode, Start
from toymq_py.errors import RequestError
from toymq_py.failure import failure_of
from toymq_py.names import TopicPattern
from toymq_py.placement import Placement
from toymq_py.records import Records
from toymq_py.storage.log import Log
from toymq_py.storage.open_files import OPEN_FILES_MAX
from toymq_py.storage.unclean_ends import end_cleanly
from toymq_py.subscription import AnyPoll, PatternSubscription
from toymq_py.subscription.pattern_subscription import MultiSubscription
from toymq_py.topic import Delivery, Published, Subscription, Tracer

DIR = "/data/d"


def is_examined(log: Log) -> bool:
    """Whether a thread is finding out how far the damage that a read met extends."""
    told: list[bool] = []
    log.when_examined(lambda: told.append(True))
    return not told


class BrokerRig:
    """A broker with shortcuts for tests. Every method runs the loop until nothing is left to do, unless it says otherwise."""

    def __init__(
        self, *, disk: SimDisk | None = None, tracer: Callable[[Clock], Tracer] | None = None,
        open_files_max: int = OPEN_FILES_MAX, placement: Placement = ALONE, **options: Any,
    ) -> None:  # fmt: skip
        self._placement = placement
        self._open_files_max = open_files_max
        self.options = BrokerOptions(**{"data_dir": DIR, "min_free_bytes": 0, "segment_bytes": 4096} | options)
        self.clock = FakeClock()
        self._tracer = tracer(self.clock) if tracer is not None else None
        self.disk = disk or SimDisk(random.Random(1))
        self.woken: list[Subscription] = []
        """All that were notified, in order; each answers that it will look."""
        self.ended: list[str] = []
        self.restart()

    def restart(self, *, again: bool = False) -> None:
        """Start a new broker on the disk as it is; the previous one must have ended. ``again``: as after several kills in a
        row, when consumers begin carefully (ADR 0249)."""
        if not again:
            end_cleanly(self.disk, self.options.data_dir)
        self.loop = SimLoop(self.clock, random.Random(3))
        self.broker = Broker(
            self.options, fs=self.disk, scheduler=self.loop, clock=self.clock, tracer=self._tracer,
            open_files_max=self._open_files_max, placement=self._placement,
        )  # fmt: skip
        self.broker.open(1)

    def reopen(self, *, power_cut: bool = False, placement: Placement = ALONE, again: bool = False) -> None:
        """Kill the process, or cut the power, and start a new broker on the same disk. ``again``: see ``restart``."""
        self._placement = placement
        self.disk = self.disk.crash() if power_cut else self.disk.kill()
        self.restart(again=again)

    def advance(self, seconds: float) -> None:
        """Let time pass, the ticker included."""
        self.loop.advance(seconds)
        self.broker.tick(self.clock.monotonic())
        self.loop.drain()

    def publish(self, topic: str, *payloads: bytes, key: bytes = b"", headers: bytes | None = None) -> list[Published]:
        """Publish messages and return their results. ``headers``: a header block that each message has."""
        blocks = None if headers is None else [headers] * len(payloads)
        outcomes = self.broker.topic_or_new(topic).publisher.publish([key] * len(payloads), payloads, blocks)
        self.loop.drain()
        return outcomes

    def subscribe(
        self,
        topic: str,
        consumer: str = "c",
        *,
        window: int = 100,
        start: str | None = None,
        visibility_s: float = 30,
        mode: Mode = "exclusive",
        wake: Callable[[Subscription], bool] | None = None,
    ) -> Subscription:
        return self.broker.topic_or_new(topic).subscribe(
            consumer, Start.parse(start) if start else None, mode=mode, window=window, visibility_s=visibility_s,
            wake=wake or self._woken, ended=lambda _, code: self.ended.append(code),
        )[0]  # fmt: skip

    def _woken(self, subscription: Subscription) -> bool:
        self.woken.append(subscription)
        return True

    def follow(
        self,
        pattern: str,
        consumer: str = "c",
        *,
        window: int = 100,
        start: str | None = None,
        mode: Mode = "exclusive",
        wake: Callable[[PatternSubscription], bool] = lambda _: True,
    ) -> PatternSubscription:
        """Subscribe to a pattern; topics that the subscription loses are noted in ``ended`` as "name CODE"."""
        subscription = PatternSubscription(
            TopicPattern(pattern), consumer, mode=mode, window=window, visibility_s=30,
            start=Start.parse(start) if start else None,
            wake=wake, ended=lambda _, name, code: self.ended.append(f"{name} {code}"),
        )  # fmt: skip
        self.broker.follow(subscription)
        self.settle(subscription)
        return subscription

    def poll(
        self, name: str, consumer: str = "c", *, visibility_s: float = 30, wake: Callable[[], bool] = lambda: True,
        mode: Mode | None = None,
    ) -> AnyPoll:  # fmt: skip
        poll = self.broker.poll(name, consumer, visibility_s=visibility_s, wake=wake, mode=mode)
        self.settle(poll)
        return poll

    def settle(self, following: MultiSubscription | AnyPoll) -> None:
        """Run the loop until a subscription is registered. Raises: the error, if that failed."""
        told: list[OSError | RequestError | None] = []
        following.when_registered(told.append)
        self.loop.advance(0)
        (problem,) = told
        if problem is not None:
            raise problem

    def take(self, subscription: Subscription | PatternSubscription) -> list[tuple[int, int]]:
        """Return (id, attempt) of everything that can be delivered now; damage is examined on the way."""
        found: list[tuple[int, int]] = []
        while True:
            while (delivery := subscription.take(1 << 20)) is not None:
                ids = delivery.records.ids[delivery.start : delivery.stop]
                found += [(msg_id, delivery.attempt) for msg_id in ids]
            if not any(is_examined(topic.log) for topic in self.broker.topics.values()):
                return found
            self.loop.drain()

    @staticmethod
    def shown(*deliveries: Delivery | None) -> list[str]:
        """Format each delivery as ``topic first-last xattempt``."""
        return [f"{d.topic} {d.first_id}-{d.last_id} x{d.attempt}" for d in deliveries if d is not None]

    def ack(self, topic: str, first: int, last: int, consumer: str = "c", *, flush: bool = True) -> int:
        count = self.broker.topic(topic).ack(consumer, [(first, last)])
        if flush:
            self.flush(topic)
        return count

    def nack(self, topic: str, first: int, last: int, consumer: str = "c", **how: Any) -> int:
        """Nack messages, by default without a delay; ``how``: ``dead`` and the texts of a failure as in NACK."""
        failure = failure_of(*(how.pop(name, None) for name in ("reason", "error_type", "error", "traceback")))
        count = self.broker.topic(topic).nack(consumer, [(first, last)], how.pop("delay_s", 0.0), failure=failure, **how)
        self.loop.advance(0)
        return count

    def redrive(
        self, topic: str, ids: list[tuple[int, int]] | None = None, max_count: int | None = None
    ) -> tuple[int, str | None]:
        """Redrive dead letters. Returns: how many went back, and the code of the error, if any."""
        answers: list[tuple[int, str | None]] = []

        def done(count: int, error: OSError | RequestError | None) -> None:
            answers.append((count, None if error is None else getattr(error, "code", "STORAGE")))

        self.broker.redrive(topic, ids, max_count, done)
        self.loop.advance(0)
        (answer,) = answers
        return answer

    def read(self, log: Log, at: int) -> tuple[Records | None, int, int]:
        return log.read(at, 1000)

    def records(self, topic: str) -> list[tuple[int, bytes, bytes, dict[str, str]]]:
        """Return (id, key, payload, headers) of all retained records."""
        log = self.broker.topic(topic).log
        found = []
        at = log.first_id
        while at < log.committed_id:
            run, row, after = self.read(log, at)
            for i in range(row, row + after - at) if run is not None else ():
                block = b"" if run.headers is None else run.headers[i]
                lines = [line.partition(": ") for line in block.decode().splitlines()]
                headers = {name: value for name, _, value in lines}
                assert len(headers) == len(lines), "no header stands twice"
                found.append((run.ids[i], run.keys[i], run.payloads[i], headers))
            at = after
        return found

    def flush(self, topic: str) -> None:
        """Write the consumers' offsets to stable storage."""
        errors: list[OSError | RequestError | None] = []
        self.broker.topic(topic).flush_offsets(errors.append)
        self.loop.advance(0)
        assert errors == [None]

    def change(self, verb: str, topic: str, **settings: str) -> str:
        """Run CREATE or CONFIG. Returns: "OK" or the error's code; STORAGE for an OSError."""
        answers: list[str] = []

        def done(error: OSError | RequestError | None) -> None:
            answers.append("OK" if error is None else getattr(error, "code", "STORAGE"))

        try:
            getattr(self.broker, verb)(topic, settings, done)
        except RequestError as error:
            return error.code
        self.loop.drain()
        (answer,) = answers
        return answer

    def delete(self, topic: str) -> int | str:
        """Delete a topic. Returns: how many messages it had, or the error's code."""
        answers: list[int | str] = []
        self.broker.delete(topic, lambda count, error: answers.append(count if error is None else str(error.strerror)))
        self.loop.advance(0)
        (answer,) = answers
        return answer

    def purge(self, topic: str) -> int | str:
        """Purge a topic. Returns: how many messages were dropped, or the error's code."""
        answers: list[int | str] = []
        self.broker.topic(topic).purge(lambda count, error: answers.append(count if error is None else str(error)))
        self.loop.advance(0)
        (answer,) = answers
        return answer

    def numbers(self, topic: str) -> dict[str, Any]:
        """Return what DESCRIBE says of a topic, with the consumers by name."""
        described = self.broker.topic(topic).describe()
        return described | {"consumers": {each["consumer"]: each for each in described["consumers"]}}

    def files(self, topic: str) -> list[str]:
        """Return the file names in a topic's directory."""
        head = f"{DIR}/topics/{topic}/"
        return sorted(path.removeprefix(head) for path in self.disk.snapshot() if path.startswith(head) and path != head)

    def segment_files(self, topic: str) -> list[str]:
        """Return the names of the segment files in a topic's directory."""
        return [name for name in self.files(topic) if name.endswith(".log")]

    def put(self, path: str, data: bytes) -> None:
        """Overwrite a file below the data directory behind the broker's back."""
        file = self.disk.open(f"{DIR}/{path}", create=True)
        file.truncate(0)
        file.pwrite(data, 0)
        file.close()
