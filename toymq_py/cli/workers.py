"""``toymq workers``: show or change the number of worker processes of a data directory."""

import os

import click

from toymq_py.data_directory import made_and_locked
from toymq_py.errors import DataDirectoryError
from toymq_py.storage.directory_owner import check_owner
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.offline.redistribute import present, redistribute
from toymq_py.storage.workers_file import check_no_part
from toymq_py.units import counted


@click.command(short_help="Show, or set, over how many processes a directory is divided.")
@click.argument("directory", default="./data")
@click.option("--set", "number", type=click.IntRange(1, 64), help="Divide it over so many workers; 1: for one process.")
def workers(directory: str, number: int | None) -> None:
    """Show over how many workers the topics of a DIRECTORY are divided, or change it while its broker is stopped.

    Only directories are renamed, so it takes no time. If it is stopped or killed, run it again: it continues, and until it has
    finished nothing serves the directory.
    """
    fs = RealFileSystem()
    if not fs.is_dir(directory):
        raise DataDirectoryError(f"there is no directory {directory}: check the path")
    check_no_part(fs, directory)
    if number is None:
        division = present(fs, directory)
        on = f", on its way to {division.following}: `--set {division.following}` completes that" if division.following else ""
        click.echo(f"{directory}: {counted(division.number, 'worker')}{on}")
        return
    check_owner(fs, directory, "toymq workers")
    lock = made_and_locked(fs, directory, os.getpid(), "toymq workers")
    try:
        count = 0

        def moved(topic: str, worker: int) -> None:
            nonlocal count
            count += 1

        redistribute(fs, directory, number, moved)
    finally:
        lock.release()
    serve = f"toymq serve --workers {number}" if number > 1 else "toymq serve"
    click.echo(f"{directory}: {counted(number, 'worker')}, {counted(count, 'topic')} moved; `{serve}` serves it")
