"""``toymq verify``: check every byte of a data directory."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

import click

from toymq_py.storage.dirlock import holder
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.id_ranges import record_range
from toymq_py.storage.offline.verify import TopicReport, check_data_directory, log_bytes
from toymq_py.storage.offline.verify import verify as verify_directory
from toymq_py.units import counted


@click.command()
@click.argument("directory", default="./data")
@click.option("--json", "as_json", is_flag=True, help="A JSON object per topic, one a line.")
def verify(directory: str, as_json: bool) -> None:
    """Check every byte of a data DIRECTORY whose broker is stopped. Changes nothing.

    Prints a line per topic and one per finding, with file, position and lost ids. Exit code 1: something is damaged. A torn
    tail, half of a record that was never answered with OK, does not count as damage.
    """
    fs = RealFileSystem()
    check_data_directory(fs, directory)
    if (user := holder(fs, directory)) is not None:
        open_in = f"{directory} is open in {user.command or 'a broker'}, process {user.pid or 'unknown'}"
        click.echo(f"toymq: {open_in}: what it writes meanwhile may show as damage; stop it, or verify again", err=True)
    total = log_bytes(fs, directory)
    with click.progressbar(length=total, label="checking", file=sys.stderr) as bar:
        reports = list(verify_directory(fs, directory, bar.update))
    print_reports(reports, as_json=as_json)
    if any(report.damaged for report in reports):
        raise SystemExit(1)


def print_reports(reports: Sequence[TopicReport], *, as_json: bool) -> None:
    """Print a line per topic and one per finding, or a JSON object per topic."""
    for report in reports:
        if as_json:
            click.echo(json.dumps(asdict(report)))
            continue
        state = "DAMAGED" if report.damaged else "ok"
        first, end = report.first_id, report.next_id
        ids = "empty" if first is None or end is None or first == end else record_range(first, end - 1, noun="id")
        click.echo(
            f"{report.topic}: {state}, {counted(report.records, 'record')} in {counted(report.segments, 'segment')}, "
            f"{counted(report.bytes, 'byte')}, {ids}"
            + (f", {'at least ' if report.lost_is_least else ''}{report.lost} lost" if report.lost else "")
        )
        for finding in report.findings:
            click.echo(f"  {'damage' if finding.damage else 'note'}: {finding.path}: {finding.text}")
    if not reports and not as_json:
        click.echo("no topics")
