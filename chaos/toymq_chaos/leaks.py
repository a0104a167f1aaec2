"""Finds leaks: resources that did not return to where they were. Contract: reliability.md, "soak". Pure.

Only samples of an idle broker ("at rest") are compared, since a busy one holds what its work needs. The first of them ends the
warm-up: by then caches are full, threads are started and the interpreter has the memory that it keeps.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from toymq_chaos.vitals import Vitals

MIB = 1 << 20
RSS_GROWTH_MAX = 0.2
"""Most growth of the memory, as a share: an allocator keeps partly used pages; a leak exceeds any share in time."""
RSS_ALLOWANCE_BYTES = 8 * MIB
DISK_ALLOWANCE_BYTES = 2 * MIB
"""Space that a log may have preallocated (``soak.SEGMENT_BYTES``), by chance at one rest and not at another."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A resource that is sampled, and its format in a report."""

    name: str
    of: Callable[[Vitals], float | None]
    show: Callable[[float], str]


def _mib(value: float) -> str:
    return f"{value / MIB:.1f} MiB"


def _ms(value: float) -> str:
    return f"{value * 1000:.2f} ms"


def _count(value: float) -> str:
    return f"{value:.0f}"


RSS = Quantity("RSS", lambda vitals: vitals.rss_bytes, _mib)
DESCRIPTORS = Quantity("descriptors", lambda vitals: vitals.descriptors, _count)
TASKS = Quantity("tasks", lambda vitals: vitals.tasks, _count)
THREADS = Quantity("threads", lambda vitals: vitals.threads, _count)
DISK = Quantity("disk", lambda vitals: vitals.disk_bytes, _mib)
PING_P50 = Quantity("PING p50", lambda vitals: vitals.ping_p50_s, _ms)
PING_P99 = Quantity("PING p99", lambda vitals: vitals.ping_p99_s, _ms)
QUANTITIES = (RSS, DESCRIPTORS, TASKS, THREADS, DISK, PING_P50, PING_P99)


def allowed_rss_bytes(first: Vitals) -> float:
    """The most resident memory, in bytes, that a later sample at rest may have, given the first."""
    return first.rss_bytes * (1 + RSS_GROWTH_MAX) + RSS_ALLOWANCE_BYTES


def allowed_disk_bytes(first: Vitals) -> int:
    return first.disk_bytes + DISK_ALLOWANCE_BYTES


def rests_of(samples: Iterable[Vitals]) -> list[Vitals]:
    """Return the samples that were taken at rest."""
    return [vitals for vitals in samples if vitals.at_rest]


def complaints(samples: Iterable[Vitals]) -> list[str]:
    """Describe the resources of which the last sample at rest has more than the first; empty when all returned."""
    rests = rests_of(samples)
    if len(rests) < 2:
        return ["there are fewer than two rests to compare"]
    first, last = rests[0], rests[-1]
    found = []
    for quantity, most in ((RSS, allowed_rss_bytes(first)), (DISK, allowed_disk_bytes(first))):
        before, after = quantity.of(first), quantity.of(last)
        assert before is not None
        assert after is not None
        if after > most:
            found.append(f"{quantity.name} {_change(quantity, before, after)} (at most {quantity.show(most)})")
    for quantity in (DESCRIPTORS, TASKS, THREADS):
        before, after = quantity.of(first), quantity.of(last)
        assert before is not None
        assert after is not None
        if after != before:
            found.append(f"{quantity.name} {_change(quantity, before, after)}")
    return found


def _change(quantity: Quantity, before: float, after: float) -> str:
    return f"{quantity.show(before)} -> {quantity.show(after)}"


def table(samples: Sequence[Vitals]) -> list[str]:
    """Return the lines of a table with each resource at the first rest, at its maximum and at the last rest."""
    rests = rests_of(samples)
    lines = [f"{'':<12}{'first rest':>13}{'max':>13}{'last rest':>13}"]
    for quantity in QUANTITIES:
        values = [value for vitals in samples if (value := quantity.of(vitals)) is not None]
        row = [quantity.of(rests[0]) if rests else None, max(values, default=None), quantity.of(rests[-1]) if rests else None]
        shown = ("-" if value is None else quantity.show(value) for value in row)
        lines.append(f"{quantity.name:<12}" + "".join(f"{text:>13}" for text in shown))
    return lines
