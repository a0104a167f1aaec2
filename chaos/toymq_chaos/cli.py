"""``toymq-chaos``: run, check, replay, soak. Exit code 0: every promise was kept; 1: one was not; 2: it could not be tried."""

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

from toymq.click_support import Duration, OneLineErrors
from toymq_chaos import history, leaks, soak
from toymq_chaos.checker import Checker
from toymq_chaos.experiment import ACK_WINDOW_NS, Experiment, Options, Report
from toymq_chaos.verdict import Verdict
from toymq_py.errors import ConfigError, DamagedData

T = TypeVar("T")

NO_PICTURE = "no picture: matplotlib is not installed (pip install 'toymq[plots]')"


class Rate(click.FloatRange):
    """A number; ``nan`` is above no minimum and below none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        rate = float(super().convert(value, param, ctx))
        if not math.isfinite(rate):
            self.fail(f"invalid rate {rate}: write a finite number", param, ctx)
        return rate


@click.group("toymq-chaos", cls=OneLineErrors, failure_code=2, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Break a broker in every way it should survive, and check what its clients saw.

    Starts the toymq beside this Python, kills it with SIGKILL (also inside its own work: commit, roll, seal, flush,
    retention, recovery), freezes it, cuts connections, fills its disk, sets its clock. Meanwhile clients publish and
    consume; some of them stop reading, leave, forget to ack. Afterwards the history is held against the promises.

    \b
        toymq-chaos run --duration 90s
        toymq-chaos check DIR/history.jsonl
        toymq-chaos soak --duration 1h
    """


def _finish(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end and return the result. SIGTERM and Ctrl-C let it clean up; the exit code is then that of a shell."""

    async def until_told() -> T:
        told = asyncio.current_task()
        assert told is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.cancel)
        return await work

    try:
        return asyncio.run(until_told())
    except asyncio.CancelledError:
        number = signal.SIGTERM
    except KeyboardInterrupt:
        number = signal.SIGINT
    click.echo(f"toymq-chaos: ended by {number.name}", err=True)
    raise SystemExit(128 + number)


OUT = click.option("--out", type=click.Path(path_type=Path), help="Where everything goes; a new folder by default.")


def duration(default: str, text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option ``--duration``."""
    return click.option("--duration", "duration_s", type=Duration(least_ms=1), default=default, show_default=True, help=text)


def common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of run and replay."""
    for option in (
        click.option("--rate", type=Rate(1), default=250.0, show_default=True, help="Messages a second, each."),
        click.option("--consumers", type=click.IntRange(1), default=2, show_default=True, help="Per topic."),
        click.option("--publishers", type=click.IntRange(1), default=4, show_default=True, help="How many clients publish."),
        OUT,
        duration("90s", "How long faults are injected."),
    ):
        command = option(command)
    return command


@main.command()
@click.option("--seed", type=int, help="Decides the faults and the clients' habits; a random one by default, and told.")
@click.option("--spark-verify", is_flag=True, help="Afterwards hold the history against the log itself with toymq-pipeline "
              "verify; retention and the full disk are left out, so that the log is whole.")  # fmt: skip
@common
def run(seed: int | None, spark_verify: bool, **values: Any) -> None:
    """Run a broker under faults, check what its clients saw, draw the timeline."""
    if seed is None:
        seed = random.randrange(1_000_000)
    options = _options(seed, {**values, "keep_log": spark_verify})
    pipeline = Path(sys.executable).with_name("toymq-pipeline")
    if spark_verify and not pipeline.exists():
        raise ConfigError(f"--spark-verify needs {pipeline}: pip install 'toymq[spark]'")
    _run(options, verbose=False)
    if spark_verify:
        kept = str(options.out / "data" / "d")
        words = ["--master", "local[2]", "verify", str(options.out / "history.jsonl"), "--data-dir", kept]
        sys.exit(subprocess.run([str(pipeline), *words], check=False).returncode)


@main.command()
@click.option("--seed", type=int, required=True, help="Of the run.")
@common
def replay(seed: int, **values: Any) -> None:
    """Run the plan of a seed again: the same faults at the same times. Tells each of them.

    The plan is the same, the machine's timing is not: what depends on microseconds may take a few replays.
    """
    options = _options(seed, values)
    _run(options, verbose=True)


@main.command(name="soak")
@click.option("--seed", type=int, help="Decides what the clients do; a random one by default, and told.")
@OUT
@duration("1h", "No round begins later.")
def soak_command(seed: int | None, out: Path | None, duration_s: float) -> None:
    """Hours of load and churn without faults; then memory, descriptors, tasks and disk are where they were.

    Clients, consumers and topics come and go. Between the rounds everything ends and the broker is looked at, at rest. The
    first rest, after a round to warm up, is held against the last.
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
              show_default=True, help="How long before a kill an answered ack may be lost: 100ms until its flush begins, and "
              "what the disk of a busy machine takes for it.")  # fmt: skip
@click.option("--unfinished", is_flag=True, help="Also a history that was cut off: nothing is missed that did not come yet.")
@click.option("--json", "as_json", is_flag=True, help="The verdict as JSON.")
def check(file: Path, ack_window_s: float, unfinished: bool, as_json: bool) -> None:
    """Hold a recorded history against the promises."""
    checker = Checker(ack_window_ns=int(ack_window_s * 1e9))
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
    """The command that runs the same plan once more."""
    return (
        f"toymq-chaos replay --seed {options.seed} --duration {options.duration_s * 1000:.0f}ms "
        f"--publishers {options.publishers} --consumers {options.consumers} --rate {options.rate}"
    )


def _run(options: Options, *, verbose: bool) -> None:
    with click.progressbar(
        length=round(options.duration_s), label=f"seed {options.seed}", file=sys.stderr, hidden=verbose,
        item_show_func=lambda item: item,
    ) as bar:  # fmt: skip

        def tell(line: str) -> None:
            if verbose:
                click.echo(line)

        def progress(elapsed_s: float) -> None:
            counts = experiment.report.counts
            kills = sum(count for what, count in counts.items() if what.startswith("kill"))
            bar.update(max(0, min(round(elapsed_s), bar.length or 0) - bar.pos), f"{kills} kills")

        logging.getLogger("toymq").setLevel(logging.ERROR)  # outages are what is tried
        experiment = Experiment(options, tell, progress)
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
    click.echo(f"again with: {again(options)}", err=True)
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
        click.echo(f"{len(verdict.violations)} times a promise was broken, for example:\n{smallest}", err=True)
