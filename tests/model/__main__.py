"""Search the replication models: ``python -m tests.model --nodes 2 --records 2``. Exit code 1 and a trace for a violation."""

import sys
import time
from dataclasses import fields
from typing import Any

import click

from tests.model.bounds import FAR, FAR_FORCED, FINDS_FILE_RULE, FINDS_RECORD_RULE, LONG, Bounds, JoinBounds
from tests.model.explore import Model, exhaust, walk
from tests.model.join import Join
from tests.model.replication import Replication
from tests.model.rules import ASSUMPTIONS, FILE_RULES, RECORD_RULES

WALK_STEPS = 150


def model_of(bounds: Bounds | JoinBounds, mutant: str | None = None) -> Model[Any]:
    """Return the model for these bounds."""
    return Replication(bounds, mutant) if isinstance(bounds, Bounds) else Join(bounds.operations, bounds.breaks, mutant)


def shown(bounds: Bounds | JoinBounds) -> str:
    """Return the options that give these bounds."""
    values = [(field.name, getattr(bounds, field.name)) for field in fields(bounds)]
    return " ".join(f"--{name}" if value is True else f"--{name} {value}" for name, value in values if value is not False)


def progress(states: int, to_visit: int, cpu_s: float) -> None:
    """Show a line that the next one overwrites."""
    if sys.stderr.isatty():
        click.echo(f"\r{states:,} states, {to_visit:,} to visit, {states / cpu_s:,.0f}/s of CPU ", nl=False, err=True)


def search(bounds: Bounds | JoinBounds, mutant: str | None, limit: int) -> bool:
    """Search the worlds within bounds and print the outcome. Returns whether every promise was kept."""
    outcome = exhaust(model_of(bounds, mutant), limit, progress)
    if sys.stderr.isatty():
        click.echo("\r", nl=False, err=True)
    verdict = outcome.violation or ("nothing is lost" if outcome.complete else "nothing is lost so far: the limit was reached")
    rate = outcome.states / max(outcome.cpu_s, 0.001)
    name = f"{mutant}: " if mutant else ""
    click.echo(f"{name}{shown(bounds)}: {outcome.states:,} states, {outcome.cpu_s:.1f} s of CPU ({rate:,.0f}/s): {verdict}")
    for line in outcome.trace:
        click.echo(f"    {line}")
    return outcome.violation is None


def walks(bounds: Bounds, mutant: str | None, seeds: range) -> bool:
    """Walk at random, once for each seed."""
    began, taken = time.process_time(), 0
    for seed in seeds:
        steps, violation, trace = walk(model_of(bounds, mutant), seed, WALK_STEPS)
        taken += steps
        if violation is not None:
            click.echo(f"{shown(bounds)}, walk {seed}: {violation}")
            for line in trace:
                click.echo(f"    {line}")
            return False
    click.echo(
        f"{shown(bounds)}: {len(seeds)} walks, {taken:,} steps, {time.process_time() - began:.1f} s of CPU: nothing is lost"
    )
    return True


@click.command()
@click.option("--nodes", type=click.IntRange(2, 5), default=2, show_default=True, help="Copies.")
@click.option("--records", type=click.IntRange(0), default=2, show_default=True, help="Publishes.")
@click.option("--epochs", type=click.IntRange(1), default=3, show_default=True, help="The last epoch.")
@click.option("--faults", type=click.IntRange(0), default=2, show_default=True, help="Power cuts; a lost disk is the last.")
@click.option("--unknown", type=click.IntRange(0), default=0, show_default=True, help="Transactions without an answer.")
@click.option("--handovers", type=click.IntRange(0), default=0, show_default=True, help="Planned hand-overs.")
@click.option("--forces", type=click.IntRange(0, 1), default=0, show_default=True, help="Uses of force.")
@click.option("--wipes", type=click.IntRange(0), default=0, show_default=True, help="Times that etcd loses everything.")
@click.option("--begin", is_flag=True, help="From empty copies and an empty etcd.")
@click.option("--files", is_flag=True, help="The join at the grain of files instead.")
@click.option("--operations", type=click.IntRange(0), default=2, show_default=True, help="--files: operations of the leader.")
@click.option("--breaks", type=click.IntRange(0), default=0, show_default=True, help="--files: power cuts and lost links.")
@click.option(
    "--mutant", type=click.Choice([*RECORD_RULES, *ASSUMPTIONS, *FILE_RULES]),
    help="The rule to leave out; without other options, in the form that finds it.",
)
@click.option("--limit", type=click.IntRange(1), default=3_000_000, show_default=True, help="Stop behind so many states.")
@click.option("--walks", "walk_count", type=click.IntRange(1), help="So many random walks instead of every world.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="With --walks: the first seed.")
@click.option("--rules", is_flag=True, help="Leave out each rule in turn, in the form that finds it.")
@click.option("--long", is_flag=True, help="Search every long form, then walk.")
def main(
    files: bool, operations: int, breaks: int, mutant: str | None, limit: int, walk_count: int | None, seed: int, rules: bool,
    long: bool, **options: Any,
) -> None:  # fmt: skip
    """Search every world of the replication protocol within bounds for an acknowledged record that is lost."""
    if rules:
        finds = FINDS_RECORD_RULE | FINDS_FILE_RULE
        found = [not search(bounds, name, limit) for name, bounds in finds.items()]
        click.echo(f"{sum(found)} of {len(found)} rules and assumptions left out are found")
        raise SystemExit(not all(found))
    if long:
        kept = [search(bounds, None, limit) for bounds in LONG]
        kept += [walks(bounds, None, range(seed, seed + (walk_count or 2000))) for bounds in (FAR, FAR_FORCED)]
        raise SystemExit(not all(kept))
    bounds = JoinBounds(operations, breaks) if files or mutant in FILE_RULES else Bounds(**options)
    if mutant is not None and bounds in (Bounds(), JoinBounds()):
        bounds = (FINDS_RECORD_RULE | FINDS_FILE_RULE)[mutant]
    if walk_count is not None and isinstance(bounds, Bounds):
        raise SystemExit(not walks(bounds, mutant, range(seed, seed + walk_count)))
    raise SystemExit(not search(bounds, mutant, limit))


if __name__ == "__main__":
    main()
