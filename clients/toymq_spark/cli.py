"""``toymq-pipeline``: the jobs from a command line. Exit code 0: done; 1: it failed, or something is wrong; 2: usage."""

import json
import logging
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

from toymq.url import DEFAULT_URL
from toymq_py.command_line import INTERRUPTED, missing
from toymq_py.errors import ConfigError, ToymqError
from toymq_py.units import parse_duration_ms, parse_size
from toymq_spark.console import Console, Ending
from toymq_spark.errors import NoSpark, OptionError

Command = Callable[..., Any]
NOTHING: Mapping[str, str] = {}
KEPT = {"includeHeaders": "headers are always kept"}
ARCHIVED = {**KEPT, "checkpointLocation": "write --checkpoint", "queryName": "the query has its name"}
REPLAYED = {"topic": "write --to", "producerId": "a replay names its producers itself"}
"""Options that a job sets itself, and what to do instead."""


class _OneLineErrors(click.Group):
    """What we or the broker say is one line, without Spark's pages around it."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            raise click.UsageError(str(error)) from None
        except ModuleNotFoundError as error:
            line = missing(error)
            if line is None:
                raise
            raise click.UsageError(f"this {line}") from None
        except (ToymqError, OSError) as error:
            click.echo(f"toymq-pipeline: {error}", err=True)
            raise SystemExit(1) from None
        except Exception as error:
            if not type(error).__module__.startswith(("pyspark", "py4j")):
                raise
            kind, text = explain(str(error))
            if kind in USAGE:
                raise click.UsageError(text) from None
            click.echo(f"toymq-pipeline: {text}", err=True)
            raise SystemExit(1) from None


USAGE = {f"{kind.__module__}.{kind.__name__}" for kind in (ConfigError, OptionError)}
"""Names of classes: Spark passes on no object of an error that was raised in another process."""


def explain(said: str) -> tuple[str | None, str]:
    """Class and text of our own error in Spark's message of a failed job; else None and the message's first line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith(("toymq_spark.", "toymq_py.", "toymq."))]
    if ours:
        kind, _, text = ours[-1].partition(": ")
        return kind, text or kind
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        return None, lines[1].removeprefix(": ")  # of Java; pages of where it was raised follow
    return None, lines[0] if lines else "Spark failed and does not say why"


@click.group(cls=_OneLineErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="toymq", prog_name="toymq-pipeline")
@click.option("--master", default="local[*]", show_default=True, help='Where Spark runs; "" leaves it to spark-submit.')
@click.pass_context
def main(ctx: click.Context, master: str) -> None:
    """Jobs on Spark: topics to files and back, and whether everything is there."""
    ctx.obj = master or None


@contextmanager
def _session(master: str | None, name: str, *, bar: bool = False) -> Iterator[Any]:
    """
    Args:
        bar: Spark's own progress bar on a terminal, for a job that has nothing else to say until it is done.

    Raises: NoSpark.
    """
    from toymq_spark.session import build_session, jvm_of  # --help should not wait for pyspark

    shown = {"spark.ui.showConsoleProgress": "true"} if bar and sys.stderr.isatty() else {}
    logging.getLogger("SQLQueryContextLogger").disabled = True  # PySpark's own pages beside the error that we say in a line
    console = Console()
    ending = Ending(console)
    ending.watch(None)
    try:
        with console.starting():
            spark = build_session(f"toymq-pipeline {name}", master, shown)
        ending.watch(jvm_of(spark))  # Spark has a handler of its own for Ctrl-C, which asks the JVM
        spark.sparkContext.setLogLevel("FATAL")  # why a job failed is said in a line, and not in its driver's pages before it
        try:
            yield spark
        finally:
            if ending.code is None:
                spark.stop()
                console.drain()
    except KeyboardInterrupt:  # while Spark was starting, it had a handler of its own for that
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
"""Parameter of a command to option of source and sink."""


def place_options(command: Command) -> Command:
    """Which broker and how to get in, or which directory."""
    for option in (
        click.option("--tls-key", help="PEM file: its key."),
        click.option("--tls-cert", help="PEM file: our certificate, if the broker asks for one."),
        click.option("--tls-ca", help="PEM file: the CA of the broker's certificate, for toymqs://."),
        click.option("--token-file", help="A file with the token; it and the PEM files are read on every node."),
        click.option("--data-dir", type=click.Path(exists=True, file_okay=False), help="A data directory instead of a broker."),
        click.option("--url", envvar="TOYMQ_URL", default=DEFAULT_URL, show_default=True, help="The broker; also TOYMQ_URL."),
    ):
        command = option(command)
    return command


def source_options(command: Command) -> Command:
    """Where records come from."""
    for option in (
        click.option("--option", "more", multiple=True, metavar="NAME=VALUE", help="Any other option of the data source."),
        click.option("--pattern", help="Topics by a regular expression for the whole name."),
        click.option("--subscribe", metavar="TOPICS", help="Topics by name, with commas between them."),
    ):
        command = option(command)
    return place_options(command)


def _said(name: str) -> bool:
    """Whether the option stands on the command line: not its default, nor the environment."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _refuse_beside_once(once: bool, option: str) -> None:
    """Raises: click.UsageError."""
    if once and _said(option.removeprefix("--").replace("-", "_")):
        raise click.UsageError(f"--once excludes {option}")


def _place(url: str, data_dir: str | None, **access: str | None) -> dict[str, str]:
    """Raises: click.UsageError."""
    if data_dir is not None and _said("url") and "to_url" not in click.get_current_context().params:
        raise click.UsageError("--data-dir excludes --url")  # but for replay, where it says where the records go
    found = {"path": data_dir} if data_dir is not None else {"url": url}
    return {**found, **{ACCESS[name]: value for name, value in access.items() if value is not None}}


def _source(
    subscribe: str | None, pattern: str | None, more: tuple[str, ...], taken: Mapping[str, str] = NOTHING, **place: Any
) -> dict[str, str]:
    """Raises: click.UsageError."""
    found = _place(**place)
    if subscribe is not None:
        found["subscribe"] = subscribe
    if pattern is not None:
        found["subscribePattern"] = pattern
    return _with("--option", more, found, taken)


def _refuse_set(more: tuple[str, ...], *names: str) -> None:
    """Refuse options that the job sets itself. Raises: OptionError."""
    given = {option.partition("=")[0].lower() for option in more}
    command = click.get_current_context().info_name
    for name in names:
        if name.lower() in given:
            raise OptionError(f"option {name}: {command} sets it itself")


def _refuse_topics(source: Mapping[str, Any]) -> None:
    """Beside an archive. Raises: click.UsageError."""
    options = {"subscribe": "--subscribe", "pattern": "--pattern", "more": "--option", "data_dir": "--data-dir"}
    for name, option in options.items():
        if source[name]:
            raise click.UsageError(f"--archive excludes {option}")


def _refuse_broker(beside: str = "--archive") -> None:
    """Where nothing asks that of --url; TOYMQ_URL may be there for others. Raises: click.UsageError."""
    for name in ("url", *ACCESS):
        if _said(name):
            raise click.UsageError(f"{beside} excludes --{name.replace('_', '-')}")


def _archive(context: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Said before Spark starts. Raises: NoArchive."""
    if path is not None:
        from toymq_spark.manifest import Archive  # --help should not wait for pyarrow

        Archive(path).require()
    return path


def _with(what: str, options: tuple[str, ...], said: Mapping[str, str], taken: Mapping[str, str] = NOTHING) -> dict[str, str]:
    """Add ``NAME=VALUE`` options to those that are set; none may be set twice.

    Args:
        taken: names of options that a job sets itself, and why.

    Raises: click.UsageError.
    """
    found = dict(said)
    why = {name.lower(): text for name, text in {**dict.fromkeys(said, "is said already"), **taken}.items()}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise click.UsageError(f"{what} {option}: write NAME=VALUE")
        if name.lower() in why:
            raise click.UsageError(f"{what} {name}: {why[name.lower()]}")
        why[name.lower()] = "is said already"
        found[name] = value
    return found


as_json = click.option("--json", "as_json", is_flag=True, help="Results as JSON, one object a line.")


@main.command()
@source_options
@click.option("--to", required=True, type=click.Path(path_type=Path), help="The archive, a directory that all nodes share.")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="How far it is; in the archive by default.")
@click.option("--once", is_flag=True, help="End when everything that is there now is archived.")
@click.option("--every", default="10s", show_default=True, help="How often a batch begins.")
@as_json
@click.pass_obj
def archive(
    master: str | None, /, to: Path, checkpoint: Path | None, once: bool, every: str, as_json: bool, **source: Any
) -> None:
    """Write topics to Parquet, each record once, until stopped. Run it again and it goes on where it was."""
    from toymq_spark.jobs import archive as job
    from toymq_spark.metrics import Progress, progress_of

    _refuse_beside_once(once, "--every")
    trigger = f"{parse_duration_ms(every)} milliseconds"
    options = _source(**source, taken=ARCHIVED)
    total = 0
    told = -1

    def tell(progress: Progress) -> None:
        nonlocal total, told
        if progress.batch <= told:
            return
        told = progress.batch
        total += progress.rows
        if as_json:
            click.echo(json.dumps({**asdict(progress), "behind_total": progress.behind_total, "rows_total": total}))
        else:
            click.echo(f"{total:,} rows archived, {progress.rows_per_s:,.0f}/s, {progress.behind_total:,} behind", err=True)

    with _session(master, "archive") as spark:
        query = job.start(spark, options, to, once=once, trigger=trigger, checkpoint=checkpoint)
        try:
            ended = False
            while not ended:
                ended = bool(query.awaitTermination(1))
                for found in query.recentProgress:
                    tell(progress_of(found))
        finally:
            query.stop()
    if not as_json:
        click.echo(f"archived {total:,} rows to {to}")


@main.command()
@source_options
@click.option("--archive", "from_archive", type=click.Path(exists=True, file_okay=False, path_type=Path), callback=_archive,
              help="An archive instead of a topic.")  # fmt: skip
@click.option("--to", required=True, metavar="TOPIC", help="Where the records go.")
@click.option("--to-url", help="Another broker than --url; nothing that is said of that one holds for it.")
@click.option("--to-option", "to_more", multiple=True, metavar="NAME=VALUE", help="Any other option of the sink.")
@click.option("--state", required=True, type=click.Path(path_type=Path), help="A directory: the plan, and how far it is.")
@click.option("--rate", type=click.IntRange(1), help="Rows a second at most.")
@as_json
@click.pass_obj
def replay(
    master: str | None, /, from_archive: Path | None, to: str, to_url: str | None, to_more: tuple[str, ...], state: Path,
    rate: int | None, as_json: bool, **source: Any,
) -> None:  # fmt: skip
    """Publish an archive, or a range of topics, into a topic, each record once. Run it again and it goes on.

    A range is said with --option startingOffsets=…, endingOffsets=…, startingTimestamp=…, endingTimestamp=….
    """
    from toymq_spark.jobs import replay as job

    if from_archive is not None:
        _refuse_topics(source)
    if to_url is not None and (from_archive is not None or source["data_dir"] is not None):
        _refuse_broker(f"{'--archive' if from_archive is not None else '--data-dir'} with --to-url")
    at = {"url": to_url} if to_url is not None else _place(source["url"], None, **{name: source[name] for name in ACCESS})
    if source["data_dir"] is not None:
        source |= dict.fromkeys(ACCESS)  # they are for the broker of --url
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
    """Show it all on real data: archive, kill -9 of broker, driver and JVM, resume, replay, verify."""
    from toymq_spark.demo import run

    if not run(master or "local[2]", click.echo):
        sys.exit(1)


@main.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path), callback=_archive)
@click.option("--target", default="128MiB", show_default=True, help="Files below it are merged, up to about this size.")
@click.option("--grace", default="1h", show_default=True, help="For how long a file stays after others stand for it.")
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
@click.option("--archive", "from_archive", type=click.Path(exists=True, file_okay=False, path_type=Path), callback=_archive,
              help="An archive instead of topics.")  # fmt: skip
@click.option("--window", default="1 minute", show_default=True, help="The width of a window, as Spark says it.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="A page with plots (extra plots).")
@as_json
@click.pass_obj
def report(
    master: str | None, /, from_archive: Path | None, window: str, html: Path | None, as_json: bool, **source: Any
) -> None:
    """What topics or an archive hold, by topic and window: rates, sizes, keys, gaps, delay, dead letters."""
    from toymq_spark import report_table
    from toymq_spark.jobs import archive as archive_job
    from toymq_spark.jobs import report as job

    job.check_window(window)
    # What it needs and is not there, is said before the work.
    draw = None if html is None else import_module("toymq_spark.report_page").page
    if from_archive is not None:
        _refuse_topics(source)
        _refuse_broker()
    _refuse_set(source["more"], *job.SET)
    with _session(master, "report", bar=True) as spark:
        if from_archive is not None:
            records = archive_job.read(spark, from_archive)
        else:
            options = {**_source(**source), **job.SET}
            records = spark.read.format("toymq").options(**options).load()
        found = job.report(records, window, from_archive)
    if html is not None and draw is not None:
        html.write_text(draw(found))
    if as_json:
        click.echo(json.dumps(asdict(found), default=str))
        return
    for line in report_table.lines(found):
        click.echo(line)


@main.command()
@source_options
@click.option("--stuck-after", default="1m", show_default=True, help="For how long a consumer may settle nothing.")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Where it goes on next time; without one it begins anew.")
@click.option("--once", is_flag=True, help="Gaps up to now, from the earliest record on; exit code 1 when there are some.")
@as_json
@click.pass_obj
def watch(
    master: str | None, /, stuck_after: str, checkpoint: Path | None, once: bool, as_json: bool, **source: Any
) -> None:
    """Tell, until stopped, of ids without a record and of consumers that do not get on, each once."""
    from toymq_spark.jobs import watch as job

    _refuse_beside_once(once, "--stuck-after")
    if source["data_dir"] is not None and _said("stuck_after"):
        raise click.UsageError("--data-dir excludes --stuck-after: a directory has no consumers")
    _refuse_set(source["more"], *job.SET)
    stuck_after_ms = parse_duration_ms(stuck_after)
    told = 0

    def tell(batch: Any, number: int) -> None:
        nonlocal told
        for row in batch.collect():
            told += 1
            found = row.asDict()
            ids = "" if row.first_id is None else f" ids {row.first_id} to {row.last_id}"
            consumer = "" if row.consumer is None else f" consumer {row.consumer}"
            click.echo(json.dumps(found) if as_json else f"{row.kind:<6} {row.topic}{consumer}{ids}: {row.detail}")

    options = {"startingOffsets": "earliest" if once else "latest", **_source(**source)}
    with _session(master, "watch") as spark, tempfile.TemporaryDirectory(prefix="toymq-watch-") as place:
        writer = job.findings(spark, options, stuck_after_ms=stuck_after_ms, once=once).writeStream.queryName("toymq-watch")
        writer = writer.option("checkpointLocation", str(checkpoint or place)).foreachBatch(tell)
        query = (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="1 second")).start()
        try:
            while not query.awaitTermination(1):
                pass
        finally:
            query.stop()
    if once and told:
        sys.exit(1)


@main.command()
@click.argument("ledgers", nargs=-1, required=True)
@place_options
@click.option("--show", type=click.IntRange(0), default=20, show_default=True, help="How many findings to print.")
@as_json
@click.pass_obj
def verify(
    master: str | None, /, ledgers: tuple[str, ...], show: int, as_json: bool, **given: Any
) -> None:
    """Hold LEDGERS (files as toymq-chaos writes them, or patterns) against the log. Exit code 1 when something is wrong."""
    from toymq_spark.jobs import verify as job

    place = _place(**given)
    with _session(master, "verify", bar=True) as spark:
        events = job.ledger(spark, ledgers).cache()
        torn = job.refuse_malformed(events)
        for line in torn:
            click.echo(f"{line}: broken off, and passed over: its writer was killed within it", err=True)
        topics = job.topics_of(events)
        if not topics:
            raise ConfigError(f"{', '.join(ledgers)}: no publish stands there")
        records, first_ids = job.log(spark, place, topics)
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
