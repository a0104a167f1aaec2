"""The memory watermark, as it is passed to the quotas."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

from toymq_py.auth.quotas import Quotas
from toymq_py.config.options import BrokerOptions
from toymq_py.metrics import Metrics
from toymq_py.runtime.heap_trimming import available_bytes
from toymq_py.runtime.memory_watch import MEMORY_PERIOD_S, MemoryWatch


class Timers:
    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> "Timers":
        assert delay_s == MEMORY_PERIOD_S
        self.calls.append(call)
        return self

    def cancel(self) -> None:
        self.calls.clear()


def test_it_is_high_above_the_limit_and_until_a_tenth_less() -> None:
    rss, seen, timers = [0], [], Timers()
    quotas = Quotas(BrokerOptions(), Metrics())
    watch = MemoryWatch(cast("asyncio.AbstractEventLoop", timers), quotas, 1000, lambda: rss[0])
    watch.look()
    for rss[0] in (1000, 1001, 950, 900, 899, 1000):
        timers.calls.pop()()
        seen.append(quotas.memory_high)
    assert seen == [False, True, True, True, False, False]
    watch.stop()
    assert not timers.calls


def test_connections_of_any_kind_that_have_ended_are_told() -> None:
    """Found: the memory of closed HTTP connections stayed until one of the text protocol ended."""
    told: list[tuple[int, int]] = []
    timers, quotas = Timers(), Quotas(BrokerOptions(), Metrics())
    watch = MemoryWatch(
        cast("asyncio.AbstractEventLoop", timers), quotas, 1000, lambda: 0, lambda most, now: told.append((most, now))
    )
    watch.look()
    seats = [quotas.enter(None) for _ in range(20)]
    timers.calls.pop()()
    while len(seats) > 5:
        seats.pop().leave()
    assert not told, "others that leave are waited for"
    timers.calls.pop()()
    assert told == [(20, 5)]
    timers.calls.pop()()
    quotas.enter(None).leave()  # one comes and goes
    timers.calls.pop()()
    assert told == [(20, 5), (6, 5)]
    watch.stop()


def test_the_limit_is_a_share_of_the_machine_or_of_the_cgroup(tmp_path: Path) -> None:
    whole = available_bytes(tmp_path)
    assert whole > 1 << 20
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path) == whole
    (group / "memory.max").write_text("1048576\n")
    assert available_bytes(tmp_path) == 1 << 20
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("9:cpu,cpuacct:/a\n4:memory:/shop/worker\n0::/system.slice/toymq.service\nx\n")
    for place, limit in (
        ("memory/shop/worker/memory.limit_in_bytes", 700_000), ("memory/shop/memory.limit_in_bytes", 600_000),
        ("system.slice/memory.max", 500_000), ("system.slice/toymq.service/memory.max", 400_000),
    ):  # fmt: skip
        (group / place).parent.mkdir(parents=True, exist_ok=True)
        (group / place).write_text(f"{limit}\n")
        assert available_bytes(tmp_path) == limit, place
    quotas = Quotas(BrokerOptions(), Metrics())
    assert 0 < MemoryWatch(cast("asyncio.AbstractEventLoop", Timers()), quotas, 0).max_bytes < available_bytes()
    assert 0 < quotas.memory_max_bytes < available_bytes(), "those that describe the broker know the limit"
