"""Runs thousands of simulated worlds: ``python -m tests.simulation --seeds 5000``. If a world breaks a promise, it prints the
smallest plan that still does, and exits with 1."""

import sys
import time
from pathlib import Path

import click

from tests.simulation import workers as worker_worlds
from tests.simulation.cluster_mutants import RULES
from tests.simulation.cluster_runs import look_at_all, smallest
from tests.simulation.world import QUEUES, Plan, run, shrink
from toymq_chaos import history


@click.command()
@click.option("--seeds", type=click.IntRange(1), default=1000, show_default=True, help="How many worlds.")
@click.option("--from", "first", type=click.IntRange(0), default=0, show_default=True, help="The first seed.")
@click.option("--out", type=click.Path(path_type=Path), help="With --seeds 1: write the history there.")
@click.option("--cluster", is_flag=True, help="Two or three brokers that replicate, and an etcd.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="With --cluster: how many processes.")
@click.option("--without", type=click.Choice(sorted(RULES)), help="With --cluster: leave a rule out of the code.")
@click.option("--workers", is_flag=True, help="A broker of several processes, which are killed one by one.")
def main(seeds: int, first: int, out: Path | None, cluster: bool, jobs: int, without: str | None, workers: bool) -> None:
    """Run the broker in simulated worlds and check what its clients saw."""
    if cluster:
        clusters(range(first, first + seeds), jobs, without)
    else:
        brokers(range(first, first + seeds), out, workers=workers)


def brokers(seeds: range, out: Path | None, *, workers: bool) -> None:
    """Run worlds of a single broker, of one process or of several workers."""
    began = time.perf_counter()
    messages = deliveries = kills = 0
    with click.progressbar(seeds, label="worlds", file=sys.stderr) as bar:
        for seed in bar:
            if workers:
                events, verdict = worker_worlds.run(seed)
            else:
                events, verdict = run(seed, QUEUES if seed % 2 else Plan())
            if out is not None:
                history.write(out, events)
            messages += verdict.acknowledged
            deliveries += verdict.delivered
            kills += verdict.kills
            if not verdict.ok:
                plan: Plan | worker_worlds.Plan
                if workers:
                    plan, smallest_verdict = worker_worlds.shrink(seed, worker_worlds.Plan())
                else:
                    plan, smallest_verdict = shrink(seed, QUEUES if seed % 2 else Plan())
                click.echo(f"\nseed {seed} with {plan}:\n{smallest_verdict.violations[0]}", err=True)
                raise SystemExit(1)
    took_s = time.perf_counter() - began
    click.echo(
        f"{len(seeds)} worlds in {took_s:.1f} s ({len(seeds) / took_s * 60:.0f} a minute): {messages} messages acknowledged, "
        f"{deliveries} deliveries, {kills} kills, nothing lost, nothing unexpected"
    )


def clusters(seeds: range, jobs: int, rule: str | None) -> None:
    """Run worlds of a cluster."""
    began = time.perf_counter()
    told = faults = 0
    cpu_s = 0.0
    with click.progressbar(look_at_all(seeds, jobs, rule), length=len(seeds), label="clusters", file=sys.stderr) as bar:
        for outcome in bar:
            told += outcome.told
            faults += outcome.faults
            cpu_s += outcome.cpu_s
            if outcome.broken:
                click.echo(f"\n{outcome.broken}\nmaking its plan smaller …", err=True)
                plan, least = smallest(outcome.seed, rule)
                click.echo(f"tests.simulation.cluster.run({outcome.seed}, {plan})\n{least.broken}", err=True)
                raise SystemExit(1)
    took_s = time.perf_counter() - began
    click.echo(
        f"{len(seeds)} clusters in {took_s:.1f} s ({len(seeds) / took_s * 3600:.0f} an hour, {cpu_s / len(seeds):.2f} s of CPU "
        f"each): {told} messages, {faults} faults and ends of processes, nothing lost, nothing unexpected"
    )


if __name__ == "__main__":
    main()
