"""Worlds by the thousand: ``python -m tests.simulation --seeds 5000``. Exit code 1 and the smallest evidence for a bad one."""

import sys
import time
from pathlib import Path

import click

from tests.simulation.world import QUEUES, Plan, run, shrink
from toymq_chaos import history


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=1000, show_default=True, help="How many worlds.")
@click.option("--from", "first", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@click.option("--out", type=click.Path(path_type=Path), help="With --seeds 1: write the history there.")
def main(seeds: int, first: int, out: Path | None) -> None:
    """Run the broker in simulated worlds and check what its clients saw."""
    began = time.perf_counter()
    messages = deliveries = kills = 0
    with click.progressbar(range(first, first + seeds), label="worlds", file=sys.stderr) as bar:
        for seed in bar:
            plan = QUEUES if seed % 2 else Plan()
            events, verdict = run(seed, plan)
            if out is not None:
                history.write(out, events)
            messages += verdict.acknowledged
            deliveries += verdict.delivered
            kills += verdict.kills
            if not verdict.ok:
                plan, smallest = shrink(seed, plan)
                click.echo(f"\nseed {seed} with {plan}:\n{smallest.violations[0]}", err=True)
                raise SystemExit(1)
    took_s = time.perf_counter() - began
    click.echo(
        f"{seeds} worlds in {took_s:.1f} s ({seeds / took_s * 60:.0f} a minute): {messages} messages acknowledged, "
        f"{deliveries} deliveries, {kills} kills, nothing lost, nothing unexpected"
    )


if __name__ == "__main__":
    main()
