"""``toymq repair``: move damage to a quarantine."""

import json
import os
import sys
from dataclasses import asdict

import click

from toymq_py.storage.directory_owner import check_owner
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.id_ranges import record_range
from toymq_py.storage.offline.repair import TopicRepair
from toymq_py.storage.offline.repair import repair as repair_directory
from toymq_py.storage.offline.verify import check_data_directory, log_bytes, lost_topics
from toymq_py.units import counted


@click.command(short_help="Repair a damaged data directory of a stopped broker.")
@click.argument("directory")
@click.option("--json", "as_json", is_flag=True, help="A JSON object per topic that was repaired, one a line.")
def repair(directory: str, as_json: bool) -> None:
    """Repair a damaged data DIRECTORY whose broker is stopped, and print what is lost.

    Every record that can be read stays, under its id. Damaged files move unchanged to quarantine/ in the directory. Afterwards
    `toymq verify` finds no damage, and no topic is degraded, except partitioned topics that must be created anew, which it
    names. Exit code 0, also when there was nothing to repair. Exit code 1: a file cannot be read, so it stays; move it away to
    give up its content.
    """
    fs = RealFileSystem()
    check_data_directory(fs, directory)
    check_owner(fs, directory, "toymq repair")
    repaired: list[TopicRepair] = []
    failed: OSError | None = None
    with click.progressbar(length=log_bytes(fs, directory), label="checking", file=sys.stderr) as bar:
        try:
            for each in repair_directory(fs, directory, pid=os.getpid(), progress=bar.update):
                repaired.append(each)  # what was done before an error is said, too
        except OSError as error:
            failed = error
    for each in repaired:
        if as_json:
            click.echo(json.dumps(asdict(each)))
            continue
        lost = sum(last - first + 1 for first, last in each.lost)
        done = "not repaired" if each.unreadable else "repaired"
        aside = counted(len(each.quarantined), "file")
        click.echo(f"{each.topic}: {done}, {counted(lost, 'record')} lost, {aside} in quarantine")
        for first, last in each.lost:
            click.echo(f"  lost: {record_range(first, last)}")
        for name in each.forgotten:
            click.echo(f"  lost: the acks of consumer {name}")
        for note in each.notes:
            click.echo(f"  note: {note}")
        for path in each.unreadable:
            click.echo(f"  {path} cannot be read: it stays, and nothing of it is given up; mend the disk, or move it away")
    if failed is not None:
        raise failed
    for text in (without := lost_topics(fs, directory)):
        click.echo(f"toymq: {text}", err=True)
    if not repaired and not without and not as_json:
        click.echo("nothing is damaged")
    if any(each.unreadable for each in repaired):
        raise SystemExit(1)
