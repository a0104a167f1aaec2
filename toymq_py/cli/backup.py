"""``toymq backup`` and ``toymq restore``."""

import os
import shlex
import sys
from pathlib import Path

import click

from toymq_py.cli.verify import print_reports
from toymq_py.clock import SystemClock
from toymq_py.errors import DataDirectoryError
from toymq_py.storage.directory_owner import check_owner
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.offline.backup import back_up
from toymq_py.storage.offline.backup_directory import read_mark, utc
from toymq_py.storage.offline.restore import restore as restore_directory
from toymq_py.storage.offline.verify import check_data_directory, log_bytes, lost_topics
from toymq_py.storage.scanner import Progress
from toymq_py.storage.workers_file import divided_directory
from toymq_py.units import counted


@click.command(short_help="Copy a data directory while its broker runs.")
@click.argument("directory")
@click.argument("to")
@click.option("--prune", is_flag=True, help="Remove copies of what DIRECTORY does not have, and TO/earlier.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object per topic, as `toymq verify` has it, one a line.")
def backup(directory: str, to: str, prune: bool, as_json: bool) -> None:
    """Copy a data DIRECTORY to TO while its broker runs, and verify the copy.

    \b
        toymq backup ./data /mnt/backup/toymq

    The copy holds every message that the broker answered with OK before the backup began. It holds no later ack: a restored
    broker delivers some messages again and loses none. TO is missing, empty, or an earlier backup, of which only changes are
    copied. Records that DIRECTORY has lost to damage stay in TO, and are named. If a topic was deleted and made anew, its old
    copy moves to TO/earlier. Exit code 1: something is damaged or missing; if a second run says so, too, it is so in DIRECTORY.
    """
    directory, to = _apart(directory, to)
    fs = RealFileSystem()
    check_data_directory(fs, directory)  # before a bar says that something is copied
    with click.progressbar(length=log_bytes(fs, directory), label="copying", file=sys.stderr) as copying:
        checking = click.progressbar(length=0, label="checking", file=sys.stderr)

        def verifying() -> Progress:
            copying.finish()
            checking.length = log_bytes(fs, to)
            return checking.update

        with checking:
            report = back_up(
                fs, directory, to,
                pid=os.getpid(), wall_ns=SystemClock.wall_ns(), prune=prune, progress=copying.update, verifying=verifying,
            )  # fmt: skip
    print_reports(report.reports, as_json=as_json)
    for problem in report.problems:
        click.echo(f"toymq: {problem}", err=True)
    for topic in report.gone:
        click.echo(f"toymq: topic {topic} is not in {directory}: the backup keeps its copy (--prune removes it)", err=True)
    for topic, place in report.superseded:
        click.echo(
            f"toymq: topic {topic} was made anew, or is from another state of {directory}: the copy from before is in {place} "
            "(--prune removes that)", err=True,
        )  # fmt: skip
    if not as_json:
        whole = "is backed up" if not report.damaged else "is backed up, with the damage that is named above,"
        copied = f"{counted(len(report.copied), 'segment')} copied ({report.copied_bytes} bytes)"
        click.echo(f"{directory} {whole} in {to}: {copied}, {len(report.kept)} were there already")
        click.echo(f"to go back to it: toymq restore {shlex.quote(to)} NEW-DIRECTORY")
    if report.damaged:
        raise SystemExit(1)


@click.command()
@click.argument("backup_directory", metavar="FROM")
@click.argument("directory")
@click.option("--at", metavar="TIME", help="Of a bucket: the topics as they were then, 2026-11-28T09:30:00Z or @<unix-ms>.")
@click.option("--unfinished", is_flag=True, help="Restore what there is of an interrupted backup.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object per topic, as `toymq verify` has it, one a line.")
def restore(backup_directory: str, directory: str, at: str | None, unfinished: bool, as_json: bool) -> None:
    """Copy the backup in FROM to a data DIRECTORY, and verify it. FROM may be the bucket of a broker with --tier.

    \b
        toymq restore /mnt/backup/toymq ./data
        toymq restore s3://history/orders ./data
        toymq restore s3://history/orders ./then --at 2026-11-28T09:30:00Z

    DIRECTORY is missing or empty: nothing is overwritten. It appears complete or not at all. Exit code 1: something is damaged
    or missing in the backup; from a bucket also if records were not sealed yet: they are missing, and named.

    --at restores the records up to TIME, with the consumers and settings of that time, of which the bucket keeps a state for
    every ten minutes of the last six hours, every hour of two days, every day of three months, every month before. What
    retention, PURGE or DELETE has removed since then is gone, and is named. Each topic gets a new incarnation, and new ids
    above all that were used, so the bucket and the broker that writes to it stay in use.
    """
    if "://" in backup_directory:
        from toymq_py.cli.tier import restore_from  # imported only when needed

        if unfinished:
            raise click.UsageError("--unfinished is for a backup, not for a bucket: leave it out")
        restore_from(backup_directory, directory, as_json=as_json, at=at)
        return
    if at is not None:
        raise click.UsageError("--at is for the bucket of a broker with --tier: a backup has one time, so leave --at out")
    backup_directory, directory = _apart(backup_directory, directory)
    fs = RealFileSystem()
    if not fs.is_dir(backup_directory):
        raise DataDirectoryError(f"there is no directory {backup_directory}: check the path")
    check_owner(fs, directory, "toymq restore")
    total = log_bytes(fs, backup_directory)
    with click.progressbar(length=total, label="copying", file=sys.stderr) as bar:
        reports = restore_directory(
            fs, backup_directory, directory, pid=os.getpid(), unfinished=unfinished, progress=bar.update
        )
    print_reports(reports, as_json=as_json)
    for text in lost_topics(fs, directory):
        click.echo(f"toymq: {text}", err=True)
    mark = read_mark(fs, backup_directory)
    for problem in mark.problems:
        click.echo(f"toymq: the backup says: {problem}", err=True)
    if not as_json:
        state = "is as it was at"
        if not mark.finished:
            state = "has what was copied, and may lack what was acknowledged before"
        elif mark.problems:
            state = "is, but for what is named above, as it was at"
        click.echo(f"{directory} {state} {utc(mark.began_ns)}, when the backup {backup_directory} began")
        if (divided := divided_directory(directory)) is not None:
            root = shlex.quote(divided)
            click.echo(f"to serve it, when the parts of all N workers are restored: toymq workers {root} --set N")
        else:
            click.echo(f"to serve it: toymq serve --data-dir {shlex.quote(directory)}")
    if mark.problems or any(report.damaged for report in reports):
        raise SystemExit(1)


def _apart(source: str, to: str) -> tuple[str, str]:
    """Both paths without a trailing slash. Raises: DataDirectoryError when one path is the other, or lies in it."""
    one, other = Path(source).resolve(), Path(to).resolve()
    if one == other or one in other.parents or other in one.parents:
        raise DataDirectoryError(f"{source} and {to} must lie apart, not one in the other")
    return source.rstrip("/") or "/", to.rstrip("/") or "/"
