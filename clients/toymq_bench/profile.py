"""Profiles the broker under a load: a flame graph, and the hottest lines in microseconds per message.

py-spy samples the unchanged process from outside. A line counts only while its thread holds the interpreter lock (GIL).
"""

import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from toymq_bench import report
from toymq_bench.broker import Broker, StartedBroker
from toymq_bench.errors import BenchError
from toymq_bench.traffic import Plan, Traffic, measure
from toymq_py.command_line import install_hint

SAMPLES_PER_S = 400
STARTS_WITHIN_S = 1.0
"""About the time that py-spy takes to start: the load lasts longer by this."""
HOTTEST = 10


def pyspy() -> str:
    """Return the path of py-spy. Raises: BenchError when it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.is_file() else shutil.which("py-spy")
    if found is None:
        raise BenchError(f"py-spy is not installed: {install_hint('profile')}")
    return found


def run(traffic: Traffic, plan: Plan, directory: Path, picture: Path) -> Iterator[str]:
    """Run the same load twice: once for the flame graph, once for the hottest lines, which it yields. Raises: BenchError,
    OSError."""
    with StartedBroker(directory, ()) as broker:
        _sampled(broker, traffic, plan, picture, "flamegraph", "flame graph")
    with StartedBroker(directory, ()) as broker, tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch) / "raw"
        values = _sampled(broker, traffic, plan, raw, "raw", "hottest lines", "--gil")
        yield from lines(raw.read_text(), values["publishes_per_s"] * plan.seconds, plan.seconds)
    yield f"{values['broker_cpu_us']:.2f} us of broker CPU a message in all, the kernel's and py-spy's share included"
    yield f"flame graph: {picture}"


def _sampled(
    broker: Broker, traffic: Traffic, plan: Plan, out: Path, form: str, label: str, *options: str
) -> dict[str, float]:
    """Run a load while py-spy samples the broker for the seconds of the plan. Raises: BenchError, OSError."""
    command = [pyspy(), "record", "--pid", str(broker.pid), "--rate", str(SAMPLES_PER_S), "--nonblocking", *options]
    command += ["--duration", str(max(round(plan.seconds), 1)), "--format", form, "--output", str(out)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as spy:
        values = measure(broker, traffic, Plan(plan.seconds + STARTS_WITHIN_S, plan.warmup_s), label)
        said = spy.communicate(timeout=plan.seconds + 60)[1].strip().splitlines()
    if spy.returncode or not out.is_file():
        raise BenchError(f"py-spy: {said[-1] if said else 'it said nothing'}")
    return values


def lines(raw: str, messages: float, seconds: float) -> Iterator[str]:
    """Yield a table of the hottest lines.

    Args:
        raw: one stack per line: its frames, outermost first, separated by semicolons, then a space and the number of samples.
        messages: number of messages in ``seconds``.
    """
    found: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        found[stack.rpartition(";")[2]] += int(count)
    us_per_sample = 1e6 / SAMPLES_PER_S / messages
    rows = [[place, f"{count * us_per_sample:.2f}"] for place, count in found.most_common(HOTTEST)]
    yield from report.table(["line", "us/message"], rows)
    busy = sum(found.values()) / SAMPLES_PER_S / seconds
    yield f"all Python: {sum(found.values()) * us_per_sample:.2f} us a message, {busy:.0%} of the time"
