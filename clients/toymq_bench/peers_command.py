"""``toymq-bench peers``: a comparison with other brokers."""

from pathlib import Path

import click

from toymq_bench import machine
from toymq_bench.options import keep, output, place, timing
from toymq_bench.peers import runner
from toymq_bench.result import Session
from toymq_bench.traffic import Plan
from toymq_py.records import PAYLOAD_BYTES_LIMIT


@click.command()
@click.option("--strace", is_flag=True, help="Count fsyncs per message in a separate run; needs strace.")
@click.option("--shape", "shapes", multiple=True, help="Connections x window: 16x256; repeatable. Default: all.")
@click.option("--size", type=click.IntRange(12, PAYLOAD_BYTES_LIMIT), default=256, help="Payload bytes.")
@timing
@place
@output
def peers(
    seconds: float, warmup_s: float, runs: int, directory: Path, size: int, shapes: tuple[str, ...], strace: bool,
    json_file: Path | None, picture: Path | None,
) -> None:  # fmt: skip
    """Compare with other installed brokers, each in its most durable mode, on the same disk, runs alternating.

    Each run starts each server on a fresh directory and a free port and stops it again. All get the same payloads and window
    from the same load generator, without keys. The table says where a server's most durable mode does not sync.
    """
    wanted = runner.chosen(shapes)
    there, skipped = runner.installed()
    results = runner.run(directory, size, Plan(seconds, warmup_s), runs, wanted, there, strace=strace)
    session = Session(machine.facts(directory), results)
    click.echo(machine.line(session.machine))
    for line in runner.lines(results, skipped):
        click.echo(line)
    keep(session, json_file, None)
    if picture is not None:
        from toymq_bench.peers import chart

        chart.draw(session, picture)
