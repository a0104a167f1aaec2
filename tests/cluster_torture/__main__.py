"""``make torture-cluster``: failovers of a real cluster on machines of its own, by the hundred, for hours.

Rounds of some twenty harms each, drawn by the number of the round, so that a run that was ended goes on with ``--round``. Each
round is judged by itself (``tests.support.cluster_harms``); the first one that is broken ends the run with exit code 1, and its
directory stays.
"""

import random
import shutil
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import click

from tests.support.cluster_harms import FAILOVERS, HARMS, MOVES, run_round
from tests.support.cluster_rig import GROUP
from tests.support.requirements import missing

PER_ROUND = 20


@click.command()
@click.option("--failovers", type=click.IntRange(1), default=1000, show_default=True, help="How many, then it ends.")
@click.option("--done", type=click.IntRange(0), default=0, show_default=True, help="So many of them are done already.")
@click.option("--round", "number", type=click.IntRange(0), default=0, show_default=True, help="The first round.")
@click.option("--harm", "only", multiple=True, type=click.Choice([*HARMS, *MOVES]), help="Only these, for figures of one.")
@click.option("--groups", "count", type=click.IntRange(1, 3), default=1, show_default=True, help="Each has a node on each "
              "machine; topics move between several.")  # fmt: skip
@click.option("--ttl", "ttl_s", type=click.FloatRange(2), default=3.0, show_default=True, help="Of the leases, in seconds.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Where rounds work; default: a temporary one.")
def main(failovers: int, done: int, number: int, only: tuple[str, ...], count: int, ttl_s: float, out: Path | None) -> None:
    """Count failovers, what was acknowledged and what was lost."""
    for name in ("etcd", "netns", "proc"):
        if (reason := missing(name)) is not None:
            raise click.ClickException(f"needs {name}: {reason}")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    groups = [GROUP] if count == 1 else [*"abc"[:count]]
    harms = (*HARMS, *MOVES) if count > 1 else tuple(HARMS)
    stored = 0
    gaps: dict[str, list[float]] = defaultdict(list)
    while done < failovers:
        rng = random.Random(number)
        # most of them fail over; the others are what a failover may meet
        names = [rng.choice(only or (FAILOVERS if rng.random() < 0.8 / count else harms)) for _ in range(PER_ROUND)]
        directory = Path(tempfile.mkdtemp(prefix=f"toymq-torture-{number}-", dir=out))
        try:
            outcome = run_round(
                directory, number, names, lambda name, gap_s: click.echo(f"  {name}: {gap_s:.2f} s"), ttl_s=ttl_s, groups=groups
            )
        except BaseException as error:
            click.echo(f"round {number} did not come to its end, see {directory}: {error!r}"[:2000], err=True)
            raise
        if outcome.broken:
            told = "\n".join(outcome.broken)
            click.echo(f"round {number} is broken, see {directory}:\n{told}", err=True)
            raise SystemExit(1)
        shutil.rmtree(directory, ignore_errors=True)
        done, number, stored = done + outcome.failovers, number + 1, stored + outcome.stored
        for name, found in outcome.gaps.items():
            gaps[name] += found
        click.echo(f"{done} of {failovers} failovers, acknowledged {stored:,}, lost 0; go on: --done {done} --round {number}")
    click.echo("\nno answer to a publish for (seconds; p50, p99, longest, times):")
    for name, found in sorted(gaps.items()):
        found.sort()
        p50, p99 = found[len(found) // 2], found[len(found) * 99 // 100]
        click.echo(f"  {name:26} {p50:6.2f} {p99:6.2f} {found[-1]:6.2f} {len(found):5}")


if __name__ == "__main__":
    sys.exit(main())
