"""``toymq-chaos``: run, check, replay, soak. Exit code 0: every promise was kept; 1: one was broken; 2: it could not run."""

import asyncio
import json
import logging
import math
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from toymq.click_support import HELP_SETTINGS, Duration, OneLineErrors
from toymq_chaos import history, leaks, soak
from toymq_chaos.experiment import ACK_WINDOW_NS, Experiment, Options, Report
from toymq_chaos.verdict import Verdict
from toymq_chaos.views import Views
from toymq_py.command_line import install_hint
from toymq_py.errors import ConfigError, DamagedData

T = TypeVar("T")

NO_PICTURE = f"no picture: matplotlib is not installed ({install_hint('plots')})"


class Rate(click.FloatRange):
    """The type of a click option that is a number but not ``nan``, which would be above no minimum and below none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        rate = float(super().convert(value, param, ctx))
        if not math.isfinite(rate):
            self.fail(f"invalid rate {rate}: write a finite number", param, ctx)
        return rate


@click.group("toymq-chaos", cls=OneLineErrors, failure_code=2, context_settings=HELP_SETTINGS)
def main() -> None:
    """Inject faults into a broker and check that it keeps its delivery guarantees.

    Starts the toymq of this Python, kills it with SIGKILL (also inside commit, roll, seal, flush, retention and
    recovery), freezes it, cuts connections, fills its disk and sets its clock. Meanwhile clients publish and consume;
    some stop reading, disconnect or do not ack. The checker then compares the recorded history with the guarantees.

    \b
        toymq-chaos run --duration 90s
        toymq-chaos check DIR/history.jsonl
        toymq-chaos soak --duration 1h
    """


def _finish(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine and return its result. SIGTERM and Ctrl-C cancel it, so that it cleans up, and exit with 128 + signal."""

    async def until_cancelled() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(until_cancelled())
    except asyncio.CancelledError:
        number = signal.SIGTERM
    except KeyboardInterrupt:
        number = signal.SIGINT
    click.echo(f"toymq-chaos: ended by {number.name}", err=True)
    raise SystemExit(128 + number)


OUT = click.option("--out", type=click.Path(path_type=Path), help="Directory of the results; default: a new temporary one.")


def duration(default: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The click option ``--duration``."""
    return click.option("--duration", "duration_s", type=Duration(least_ms=1), default=default, help=text)


def common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that run and replay share to a command."""
    for option in (
        click.option("--rate", type=Rate(1), default=250.0, help="Messages per second of each publisher."),
        click.option("--consumers", type=click.IntRange(1), default=2, help="Consumers of each topic."),
        click.option("--workers", type=click.IntRange(1, 8), default=1, help="Broker processes, one more in every second "
                     "life: each is killed, and so is their supervisor."),
        click.option("--publishers", type=click.IntRange(1), default=4, help="Publishing clients."),
        OUT,
        duration("90s", "How long faults are injected."),
    ):  # fmt: skip
        command = option(command)
    return command


@main.command()
@click.option("--seed", type=int, help="Seed of faults and clients; default: a random one, which is printed.")
@click.option("--spark-verify", is_flag=True, help="Afterwards compare the history with the log, with toymq-pipeline "
              "verify. Leaves out retention and the full disk, so that the log stays complete.")  # fmt: skip
@common
def run(seed: int | None, spark_verify: bool, **values: Any) -> None:
    """Run a broker under faults, check its guarantees and draw a timeline."""
    if seed is None:
        seed = random.randrange(1_000_000)
    options = _options(seed, {**values, "keep_log": spark_verify})
    if spark_verify and options.workers > 1:
        raise ConfigError("--spark-verify compares with one log: leave out --workers")
    pipeline = Path(sys.executable).with_name("toymq-pipeline")
    if spark_verify and not pipeline.exists():
        raise ConfigError(f"--spark-verify needs {pipeline}: {install_hint('spark')}")
    _run(options, verbose=False)
    if spark_verify:
        kept = str(options.out / "data" / "d")
        words = ["--master", "local[2]", "verify", str(options.out / "history.jsonl"), "--data-dir", kept]
        sys.exit(subprocess.run([str(pipeline), *words], check=False).returncode)


@main.command()
@click.option("--seed", type=int, required=True, help="Seed of the run to repeat.")
@common
def replay(seed: int, **values: Any) -> None:
    """Repeat the faults of a seed at the same times, and print each.

    The plan is the same, the machine's timing is not: a failure that depends on microseconds may take a few replays.
    """
    options = _options(seed, values)
    _run(options, verbose=True)


@main.command(name="soak")
@click.option("--seed", type=int, help="Seed of the clients; default: a random one, which is printed.")
@OUT
@duration("1h", "No round starts later than this.")
def soak_command(seed: int | None, out: Path | None, duration_s: float) -> None:
    """Find leaks: hours of load and churn without faults, after which memory, descriptors, tasks, threads and disk have to
    return to where they were.

    Clients, consumers and topics come and go. Between rounds the load ends and the broker is sampled at rest. The first
    rest, after a warm-up round, is compared with the last.
    """
    if seed is None:
        seed = random.randrange(1_000_000)
    if out is None:
        out = Path(tempfile.mkdtemp(prefix=f"toymq-soak-{seed}-"))
    with click.progressbar(
        length=max(round(duration_s), 1), label=f"seed {seed}", file=sys.stderr, item_show_func=lambda item: item
    ) as bar:

        def progress(elapsed_s: float, doing: str) -> None:
            bar.update(max(0, min(round(elapsed_s), bar.length or 0) - bar.pos), doing)

        report = _finish(soak.Soak(soak.Options(seed, duration_s, out), progress).run())
    for line in leaks.table(report.samples):
        click.echo(line)
    try:
        from toymq_chaos import curves
    except ImportError:
        click.echo(NO_PICTURE)
    else:
        rounds = sum(sample.at_rest for sample in report.samples)
        picture = out / "soak.png"
        curves.draw(report.samples, picture, f"soak, seed {seed}: {rounds} rounds in {duration_s / 60:.1f} minutes")
        click.echo(f"picture      {picture}")
    click.echo(f"samples      {out / 'soak.jsonl'}")
    if (complaint := report.complaint()) is not None:
        click.echo(complaint, err=True)
        sys.exit(1)
    click.echo("everything returned to where it was")


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--ack-window", "ack_window_s", type=Duration(), default=f"{ACK_WINDOW_NS // 1_000_000}ms",
              help="How long before a kill an answered ack may be lost: 100ms and the time of a flush.")  # fmt: skip
@click.option("--unfinished", is_flag=True, help="Accept a history that was cut off: what is not delivered yet is not lost.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def check(file: Path, ack_window_s: float, unfinished: bool, as_json: bool) -> None:
    """Check a recorded history against the delivery guarantees."""
    checker = Views(ack_window_ns=int(ack_window_s * 1e9))
    with click.progressbar(
        length=file.stat().st_size, label="checking", file=sys.stderr, update_min_steps=1 << 20
    ) as bar:  # fmt: skip
        for event in history.read(file, bar.update):
            checker.feed(event)
    if checker.missing is not None and not unfinished:
        raise DamagedData(f"{file}: {checker.missing}")
    verdict = checker.verdict()
    if as_json:
        click.echo(json.dumps(verdict.as_dict()))
    else:
        _show(verdict)
    sys.exit(0 if verdict.ok else 1)


def _options(seed: int, values: dict[str, Any]) -> Options:
    out = values.pop("out") or Path(tempfile.mkdtemp(prefix=f"toymq-chaos-{seed}-"))
    return Options(seed=seed, out=out, **values)


def again(options: Options) -> str:
    """Return the command line that repeats the plan of a run."""
    return (
        f"toymq-chaos replay --seed {options.seed} --duration {options.duration_s * 1000:.0f}ms "
        f"--publishers {options.publishers} --consumers {options.consumers} --rate {options.rate} --workers {options.workers}"
    )


def _run(options: Options, *, verbose: bool) -> None:
    with click.progressbar(
        length=round(options.duration_s), label=f"seed {options.seed}", file=sys.stderr, hidden=verbose,
        item_show_func=lambda item: item,
    ) as bar:  # fmt: skip

        def report_fault(line: str) -> None:
            if verbose:
                click.echo(line)

        def progress(elapsed_s: float) -> None:
            counts = experiment.report.counts
            kills = sum(count for what, count in counts.items() if what.startswith("kill"))
            bar.update(max(0, min(round(elapsed_s), bar.length or 0) - bar.pos), f"{kills} kills")

        logging.getLogger("toymq").setLevel(logging.ERROR)  # outages are expected
        experiment = Experiment(options, report_fault, progress)
        report = _finish(experiment.run())
    _show(report.verdict)
    _show_faults(report)
    try:
        from toymq_chaos import timeline
    except ImportError:
        click.echo(NO_PICTURE)
    else:
        picture = options.out / "timeline.png"
        timeline.draw(history.read(options.out / "history.jsonl"), picture, again(options))
        click.echo(f"picture      {picture}")
    click.echo(f"history      {options.out / 'history.jsonl'}")
    if report.ok:
        click.echo("every promise was kept")
        return
    if report.failure is not None:
        click.echo(report.failure, err=True)
    click.echo(f"repeat with: {again(options)}", err=True)
    sys.exit(1)


def _show_faults(report: Report) -> None:
    for what, count in sorted(report.counts.items()):
        click.echo(f"{count:>12} {what}")
    for line in report.not_tried:
        click.echo(f"   not tried {line}")


def _show(verdict: Verdict) -> None:
    for name in ("attempted", "acknowledged", "recovered", "lost", "unexpected", "delivered", "acked", "kills"):
        click.echo(f"{name:<12} {getattr(verdict, name)}")
    click.echo(f"{'duplicated':<12} {sum(verdict.duplicated.values())}")
    for cause, count in verdict.duplicated.most_common():
        click.echo(f"{count:>12} {cause}")
    if verdict.violations:
        smallest = min(verdict.violations, key=lambda violation: len(violation.evidence))
        click.echo(f"{len(verdict.violations)} broken promises, for example:\n{smallest}", err=True)
