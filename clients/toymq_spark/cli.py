"""``toymq-pipeline``: Spark jobs as commands. Exit code 0: done; 1: failed, or a job found something; 2: wrong usage."""

import errno
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from toymq.click_support import HELP_SETTINGS
from toymq.url import DEFAULT_URL
from toymq_py.command_group import CommandGroup, say
from toymq_py.command_line import INTERRUPTED, missing
from toymq_py.errors import ConfigError, ToymqError
from toymq_py.units import parse_duration_ms, parse_size
from toymq_spark.archive_options import DIRECTORY, Archived, archive_option, parquet_archive, target, target_options
from toymq_spark.console import Console, Ending
from toymq_spark.errors import NoSpark, OptionError

Command = Callable[..., Any]
NOTHING: Mapping[str, str] = {}
KEPT = {"includeHeaders": "headers are always kept"}
ARCHIVED = {**KEPT, "checkpointLocation": "use --checkpoint", "queryName": "archive names the query"}
REPLAYED = {"topic": "use --to", "producerId": "replay names its producers"}
"""Options that a job sets, with what to do instead."""


class _OneLineErrors(CommandGroup):
    """A click command group that prints our own and the broker's errors in one line, without Spark's stack traces."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            say(self, str(error), _running(ctx))
        except ModuleNotFoundError as error:
            line = missing(error)
            if line is None:
                raise
            say(self, f"this command {line}", _running(ctx))
        except (ToymqError, OSError) as error:
            click.echo(f"toymq-pipeline: {error}", err=True)
            raise SystemExit(1) from None
        except Exception as error:
            if not type(error).__module__.startswith(("pyspark", "py4j")):
                raise
            kind, text = explain(str(error))
            if kind in USAGE:
                say(self, text, _running(ctx))
            click.echo(f"toymq-pipeline: {text}", err=True)
            raise SystemExit(1) from None


def _running(ctx: click.Context) -> click.Context:
    """Return the context of the command that a group has called, whose own context is gone; else that of the group."""
    name = ctx.invoked_subcommand
    found = ctx.command.get_command(ctx, name) if isinstance(ctx.command, click.Group) and name is not None else None
    return ctx if found is None else click.Context(found, ctx, name)


USAGE = {f"{kind.__module__}.{kind.__name__}" for kind in (ConfigError, OptionError)}
"""Class names of usage errors: of an error in another process Spark passes on only the text."""


NO_SPACE = os.strerror(errno.ENOSPC)
DISK_FULL = (
    "a disk is full: that of the archive, of the checkpoint or of Spark's temporary files (spark.local.dir). "
    "Make room and run the command again: it repeats what was not finished"
)
BUSY = "the machine is too busy, a Python process of Spark did not start in time: run the command again"


def explain(text: str) -> tuple[str | None, str]:
    """Find our own error in Spark's message of a failed job. Returns: its class and text; None and a text for any other
    error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith(("toymq_spark.", "toymq_py.", "toymq."))]
    if ours:
        kind, _, reason = ours[-1].partition(": ")
        return kind, reason or kind
    if NO_SPACE in text:
        return None, DISK_FULL
    if "failed to connect back" in text:
        return None, BUSY
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        return None, lines[1].removeprefix(": ")  # Java's error; its stack trace follows
    return None, lines[0] if lines else "Spark failed without a message"


@click.group("toymq-pipeline", cls=_OneLineErrors, context_settings=HELP_SETTINGS)
@click.version_option(package_name="toymq", prog_name="toymq-pipeline")
@click.option("--master", default="local[*]", help='Spark master; "" leaves it to spark-submit.')
@click.pass_context
def main(ctx: click.Context, master: str) -> None:
    """Spark jobs: archive topics to Parquet, replay, report on and verify them."""
    ctx.obj = master or None


@contextmanager
def _session(master: str | None, name: str, *, bar: bool = False) -> Iterator[Any]:
    """Start a Spark session, and stop it at the end.

    Args:
        bar: show Spark's progress bar on a terminal, for a job that prints nothing before its end.

    Raises: NoSpark.
    """
    from toymq_spark.session import build_session, jvm_of  # --help should not wait for pyspark

    shown = {"spark.ui.showConsoleProgress": "true"} if bar and sys.stderr.isatty() else {}
    logging.getLogger("SQLQueryContextLogger").disabled = True  # PySpark's stack trace beside our line
    console = Console()
    ending = Ending(console)
    ending.watch(None)
    try:
        with console.starting():
            spark = build_session(f"toymq-pipeline {name}", master, shown)
        ending.watch(jvm_of(spark))  # Spark's own handler of Ctrl-C asks the JVM
        spark.sparkContext.setLogLevel("FATAL")  # we print why a job failed in one line
        try:
            yield spark
        finally:
            if ending.code is None:
                spark.stop()
                console.drain()
    except KeyboardInterrupt:  # while Spark starts, it handles Ctrl-C itself
        console.mute()
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        if ending.code is not None:
            raise SystemExit(ending.code) from None
        if "JAVA_GATEWAY_EXITED" in str(error):
            raise NoSpark(f"Spark does not start: {console.last_words() or error}") from None
        raise
    finally:
        ending.restore()


ACCESS = {
    "token_file": "toymq.token.file", "tls_ca": "toymq.tls.ca", "tls_cert": "toymq.tls.cert", "tls_key": "toymq.tls.key",
}  # fmt: skip
"""Options of source and sink by parameter of a command."""


def place_options(command: Command) -> Command:
    """Add the options for the broker and its access, or for a data directory, to a command."""
    for option in (
        click.option("--tls-key", help="PEM file of the client certificate's key."),
        click.option("--tls-cert", help="PEM file of a client certificate, if the broker requires one."),
        click.option("--tls-ca", help="PEM file of the CA that signed the broker's certificate, for toymqs://."),
        click.option("--token-file", help="File that holds the token; every node reads it and the PEM files."),
        click.option("--data-dir", type=click.Path(exists=True, file_okay=False), help="Read this directory, not a broker."),
        click.option("--url", envvar="TOYMQ_URL", default=DEFAULT_URL, help="URL of the broker; also TOYMQ_URL."),
    ):
        command = option(command)
    return command


def source_options(command: Command) -> Command:
    """Add the options for the source of records to a command."""
    for option in (
        click.option("--option", "more", multiple=True, metavar="NAME=VALUE", help="Another source option; repeatable."),
        click.option("--pattern", help="Read the topics whose whole name matches this regular expression."),
        click.option("--subscribe", metavar="TOPICS", help="Read these topics: names separated by commas."),
    ):
        command = option(command)
    return place_options(command)


def _given(name: str) -> bool:
    """Whether an option was given on the command line, and does not come from the environment or its default."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _refuse_beside_once(once: bool, option: str) -> None:
    """Refuse an option together with ``--once``. Raises: click.UsageError."""
    if once and _given(option.removeprefix("--").replace("-", "_")):
        raise click.UsageError(f"--once excludes {option}")


def _place(url: str, data_dir: str | None, **access: str | None) -> dict[str, str]:
    """Convert the options for a broker or a data directory to options of the source. Raises: click.UsageError."""
    if data_dir is not None and _given("url") and "to_url" not in click.get_current_context().params:
        raise click.UsageError("--data-dir excludes --url")  # but in replay --url is the target
    found = {"path": data_dir} if data_dir is not None else {"url": url}
    return {**found, **{ACCESS[name]: value for name, value in access.items() if value is not None}}


def _source(
    subscribe: str | None, pattern: str | None, more: tuple[str, ...], taken: Mapping[str, str] = NOTHING, **place: Any
) -> dict[str, str]:
    """Convert the command's options to options of the source. Raises: click.UsageError."""
    found = _place(**place)
    if subscribe is not None:
        found["subscribe"] = subscribe
    if pattern is not None:
        found["subscribePattern"] = pattern
    return _with("--option", more, found, taken)


def _refuse_set(more: tuple[str, ...], *names: str) -> None:
    """Refuse options of the source that the job sets itself. Raises: OptionError."""
    given = {option.partition("=")[0].lower() for option in more}
    command = click.get_current_context().info_name
    for name in names:
        if name.lower() in given:
            raise OptionError(f"option {name}: {command} sets it; leave it out")


def _refuse_topics(source: Mapping[str, Any]) -> None:
    """Refuse options for topics together with ``--archive``. Raises: click.UsageError."""
    options = {"subscribe": "--subscribe", "pattern": "--pattern", "more": "--option", "data_dir": "--data-dir"}
    for name, option in options.items():
        if source.get(name):
            raise click.UsageError(f"--archive excludes {option}")


def _refuse_broker(beside: str = "--archive") -> None:
    """Refuse broker options together with ``beside``. TOYMQ_URL may be set. Raises: click.UsageError."""
    for name in ("url", *ACCESS):
        if _given(name):
            raise click.UsageError(f"{beside} excludes --{name.replace('_', '-')}")


def _with(what: str, options: tuple[str, ...], given: Mapping[str, str], taken: Mapping[str, str] = NOTHING) -> dict[str, str]:
    """Add ``NAME=VALUE`` options to the given ones; no option may be set twice.

    Args:
        taken: options that the job sets itself, each with the advice for the error.

    Raises: click.UsageError.
    """
    found = dict(given)
    why = {name.lower(): text for name, text in {**dict.fromkeys(given, "is given twice"), **taken}.items()}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise click.UsageError(f"{what} {option}: write NAME=VALUE")
        if name.lower() in why:
            raise click.UsageError(f"{what} {name}: {why[name.lower()]}")
        why[name.lower()] = "is given twice"
        found[name] = value
    return found


as_json = click.option("--json", "as_json", is_flag=True, help="Print results as JSON, one object a line.")


@main.command()
@source_options
@target_options
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Directory of its progress; default: in the archive.")
@click.option("--once", is_flag=True, help="Archive what is there now, then exit.")
@click.option("--every", default="10s", help="Interval between batches.")
@as_json
@click.pass_obj
def archive(
    master: str | None, /, to: str, kind: str, partition_by: str | None, checkpoint: Path | None, once: bool, every: str,
    as_json: bool, **source: Any,
) -> None:  # fmt: skip
    """Write topics to Parquet or to a table, each record once, until stopped. Run it again to continue."""
    from toymq_spark.jobs import archive as job
    from toymq_spark.metrics import followed

    _refuse_beside_once(once, "--every")
    trigger = f"{parse_duration_ms(every)} milliseconds"
    options = _source(**source, taken=ARCHIVED)
    place = target(to, kind, partition_by)
    checkpoint = checkpoint or job.checkpoint_of(place)
    total = 0
    with _session(master, "archive") as spark:
        for progress, total in followed(job.start(spark, options, place, checkpoint, once=once, trigger=trigger)):
            if as_json:
                click.echo(json.dumps({**asdict(progress), "behind_total": progress.behind_total, "rows_total": total}))
            elif not once or progress.behind_total:  # the last line says it of the last batch
                said = f"{total:,} rows archived, {progress.rows_per_s:,.0f}/s, {progress.behind_total:,} behind"
                click.echo(said, err=True)
    if not as_json:
        click.echo(f"archived {total:,} rows to {to}")


@main.command()
@source_options
@archive_option
@click.option("--to", required=True, metavar="TOPIC", help="Topic that gets the records.")
@click.option("--to-url", help="URL of the target broker, if it is not --url; access options of --url do not apply to it.")
@click.option("--to-option", "to_more", multiple=True, metavar="NAME=VALUE", help="Another option of the sink; repeatable.")
@click.option("--state", required=True, type=click.Path(path_type=Path), help="Directory of the plan and its progress.")
@click.option("--rate", type=click.IntRange(1), help="Most rows per second.")
@as_json
@click.pass_obj
def replay(
    master: str | None, /, from_archive: Archived, to: str, to_url: str | None, to_more: tuple[str, ...], state: Path,
    rate: int | None, as_json: bool, **source: Any,
) -> None:  # fmt: skip
    """Publish an archive, or a range of topics, into a topic, each record once. Run it again to continue.

    A range: --option startingOffsets=…, endingOffsets=…, startingTimestamp=… or endingTimestamp=….
    """
    from toymq_spark.jobs import replay as job

    if from_archive is not None:
        _refuse_topics(source)
    if to_url is not None and (from_archive is not None or source["data_dir"] is not None):
        _refuse_broker(f"{'--archive' if from_archive is not None else '--data-dir'} with --to-url")
    at = {"url": to_url} if to_url is not None else _place(source["url"], None, **{name: source[name] for name in ACCESS})
    if source["data_dir"] is not None:
        source |= dict.fromkeys(ACCESS)  # they belong to the broker of --url
    sink = {**_with("--to-option", to_more, at, REPLAYED), "topic": to}
    place = from_archive or _source(**source, taken=KEPT)
    progress = job.Progress(0, 0, 0, 0)
    with _session(master, "replay") as spark:
        for progress in job.replay(spark, place, sink, state, rate=rate):
            if as_json:
                click.echo(json.dumps(asdict(progress)))
            else:
                done = f"{progress.rows:,} of {progress.total:,} rows, piece {progress.piece} of {progress.pieces}"
                click.echo(done, err=True)
    if not as_json:
        click.echo(f"replayed {progress.rows:,} rows to {to}")
    elif not progress.piece:
        click.echo(json.dumps(asdict(progress)))


@main.command()
@click.pass_obj
def demo(master: str | None) -> None:
    """Demonstrate all on real data: archive, kill -9 of broker, driver and JVM, resume, replay, verify."""
    from toymq_spark.demo import run

    if not run(master or "local[2]", click.echo):
        sys.exit(1)


@main.command()
@click.argument("directory", type=DIRECTORY, callback=parquet_archive)
@click.option("--target", default="128MiB", help="Merge files smaller than this into files of about this size.")
@click.option("--grace", default="1h", help="Time that a merged file stays for readers that still use it.")
@as_json
@click.pass_obj
def compact(master: str | None, directory: Path, target: str, grace: str, as_json: bool) -> None:
    """Merge the small files of an archive. Readers see the old files or the new ones, never both."""
    from toymq_spark.jobs import compact as job

    target_bytes, grace_ms = parse_size(target), parse_duration_ms(grace)
    with _session(master, "compact", bar=True) as spark:
        done = job.compact(spark, directory, target_bytes=target_bytes, grace_ms=grace_ms)
    if as_json:
        click.echo(json.dumps(asdict(done)))
    else:
        click.echo(f"merged {done.merged} files into {done.made} ({done.rows:,} rows), removed {done.removed} old ones")


@main.command()
@source_options
@archive_option
@click.option("--window", default="1 minute", help="Width of a window, in Spark's words.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with plots; needs the extra plots.")
@as_json
@click.pass_obj
def report(
    master: str | None, /, from_archive: Archived, window: str, html: Path | None, as_json: bool, **source: Any
) -> None:
    """Report on topics or an archive, by topic and window: rates, sizes, keys, gaps, delays, dead letters."""
    from toymq_spark import report_table
    from toymq_spark.jobs import archive as archive_job
    from toymq_spark.jobs import report as job

    job.check_window(window)
    # A missing package is an error before the work.
    draw = None if html is None else import_module("toymq_spark.report_page").page
    if from_archive is not None:
        _refuse_topics(source)
        _refuse_broker()
    _refuse_set(source["more"], *job.SET)
    with _session(master, "report", bar=True) as spark:
        if from_archive is not None:
            records = archive_job.records(spark, from_archive)
        else:
            options = {**_source(**source), **job.SET}
            records = spark.read.format("toymq").options(**options).load()
        found = job.report(records, window, from_archive if isinstance(from_archive, Path) else None)
    if html is not None and draw is not None:
        html.write_text(draw(found))
    if as_json:
        click.echo(json.dumps(asdict(found), default=str))
        return
    for line in report_table.lines(found):
        click.echo(line)


@main.command()
@source_options
@archive_option
@click.option("--stuck-after", default="1m", help="Report a consumer that settles nothing for this long.")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Directory of its progress; without it runs start anew.")
@click.option("--once", is_flag=True, help="Report gaps from the earliest record up to now; exit code 1 for any.")
@as_json
@click.pass_obj
def watch(
    master: str | None, /, from_archive: Archived, stuck_after: str, checkpoint: Path | None, once: bool, as_json: bool,
    **source: Any,
) -> None:  # fmt: skip
    """Report gaps (ids without a record) and stuck consumers, each once, until stopped."""
    from toymq_spark.jobs import archive as archive_job
    from toymq_spark.jobs import watch as job

    _refuse_beside_once(once, "--stuck-after")
    if source["data_dir"] is not None and _given("stuck_after"):
        raise click.UsageError("--data-dir excludes --stuck-after: a directory has no consumers")
    _refuse_set(source["more"], *job.SET)
    if from_archive is not None:
        _refuse_topics(source)
        _refuse_broker()
        if not once or checkpoint is not None:
            raise click.UsageError("--archive needs --once, and no --checkpoint")
    stuck_after_ms = parse_duration_ms(stuck_after)
    count = 0

    def show(batch: Any, number: int) -> None:
        nonlocal count
        for row in batch.collect():
            count += 1
            found = row.asDict()
            ids = "" if row.first_id is None else f" ids {row.first_id} to {row.last_id}"
            consumer = "" if row.consumer is None else f" consumer {row.consumer}"
            click.echo(json.dumps(found) if as_json else f"{row.kind:<6} {row.topic}{consumer}{ids}: {row.detail}")

    options = {"startingOffsets": "earliest" if once else "latest", **_source(**source)}
    with _session(master, "watch") as spark, tempfile.TemporaryDirectory(prefix="toymq-watch-") as place:
        if from_archive is not None:
            show(job.gaps(archive_job.records(spark, from_archive)), 0)
        else:
            found = job.findings(spark, options, stuck_after_ms=stuck_after_ms, once=once)
            writer = found.writeStream.option("checkpointLocation", str(checkpoint or place)).foreachBatch(show)
            writer = writer.queryName("toymq-watch")
            query = (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="1 second")).start()
            try:
                while not query.awaitTermination(1):
                    pass
            finally:
                query.stop()
    if once:
        click.echo(f"{count or 'no'} finding{'s' * (count != 1)}", err=True)
    if count and once:
        sys.exit(1)


@main.command()
@click.argument("ledgers", nargs=-1, required=True)
@place_options
@archive_option
@click.option("--show", type=click.IntRange(0), default=20, help="Most findings to print.")
@as_json
@click.pass_obj
def verify(
    master: str | None, /, ledgers: tuple[str, ...], from_archive: Archived, show: int, as_json: bool, **given: Any
) -> None:
    """Compare LEDGERS (histories of toymq-chaos, or patterns of files) with a log or an archive. Exit code 1 if they differ."""
    from toymq_spark.jobs import verify as job

    place = _place(**given)
    if from_archive is not None:
        _refuse_topics(given)
        _refuse_broker()
    with _session(master, "verify", bar=True) as spark:
        events = job.ledger(spark, ledgers).cache()
        torn = job.refuse_malformed(events)
        for line in torn:
            click.echo(f"{line}: incomplete line ignored: its writer was killed", err=True)
        topics = job.topics_of(events)
        if not topics:
            raise ConfigError(f"{', '.join(ledgers)}: no publish in these ledgers")
        if from_archive is None:
            records, first_ids = job.log(spark, place, topics)
        else:
            records, first_ids = job.archived(spark, from_archive, topics)
        tables = [events, records.cache(), job.findings(events, records, first_ids).cache()]
        found = tables[-1]
        counts = dict.fromkeys(job.KINDS, 0) | {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
        rows = [row.asDict() for row in found.orderBy("kind", "topic", "id").limit(show).collect()]
        for table in tables:
            table.unpersist()
    if as_json:
        click.echo(json.dumps({"findings": sum(counts.values()), **counts, "torn": torn, "rows": rows}))
    else:
        for row in rows:
            click.echo(f"{row['kind']:<11} {row['topic']} {row['id']} key {row['key']}: {row['detail']}")
        click.echo("  ".join(f"{kind} {counts[kind]}" for kind in job.KINDS))
    if any(counts.values()):
        sys.exit(1)
