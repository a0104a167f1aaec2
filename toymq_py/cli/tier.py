"""``toymq tier``: the bucket of a broker with ``--tier``."""

import json
import os
import shlex

import click

from toymq_py.cli.verify import print_reports
from toymq_py.clock import SystemClock
from toymq_py.config.tier_url import parse_tier
from toymq_py.errors import ConfigError
from toymq_py.storage.directory_owner import check_owner
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.id_ranges import record_range
from toymq_py.storage.offline.backup_directory import utc
from toymq_py.storage.offline.verify import check_data_directory, lost_topics, verify_topic
from toymq_py.storage.topic_directories import topic_names
from toymq_py.tier.bucket import check_there, open_bucket
from toymq_py.tier.check import check as compare
from toymq_py.tier.marker import Marker
from toymq_py.tier.reader import BucketReader
from toymq_py.tier.restore import restore
from toymq_py.units import counted, parse_time_ns


@click.group("tier", short_help="List a bucket, compare a directory with it.")
def tier() -> None:
    """List the bucket of `toymq serve --tier`, and compare a data directory with it."""


@tier.command("list")
@click.argument("url")
@click.option("--json", "as_json", is_flag=True, help="A JSON object per topic, one a line.")
def list_topics(url: str, as_json: bool) -> None:
    """List the topics in a bucket.

    What `toymq restore URL` would bring back:

    \b
        toymq tier list s3://history/orders

    It lists names, and reads one small object per topic; no segment is fetched. Deleted topics are not shown.
    """
    parse_tier(url)
    bucket = open_bucket(url, RealFileSystem(), read_only=True)
    reader = BucketReader(bucket)
    names = reader.topics()
    if not names:
        check_there(bucket)
    for topic in map(reader.topic, names):
        segments, at = len(topic.segments), topic.state_ns
        if as_json:
            ids = {"first_id": topic.first_id, "next_id": topic.next_id}
            click.echo(json.dumps({**topic.place._asdict(), **ids, "segments": segments, "state_at_ns": at}))
            continue
        ids_text = record_range(topic.first_id, topic.next_id - 1) if topic.next_id > topic.first_id else "no records"
        state = "no state" if at is None else f"consumers and settings as of {utc(at)}"
        click.echo(f"{topic.place.topic}: {ids_text} in {counted(segments, 'segment')}, {state}")
    if not as_json and not names:
        click.echo("no topics")


@tier.command()
@click.argument("url")
@click.argument("directory")
@click.option("--repair", is_flag=True, help="Upload what is missing or damaged, delete what was deleted or removed.")
@click.option("--delete", multiple=True, metavar="TOPIC", help="Delete what only the bucket has of a topic; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object per finding, one a line.")
def check(url: str, directory: str, repair: bool, delete: tuple[str, ...], as_json: bool) -> None:
    """Compare the bucket at URL with a data DIRECTORY, both ways.

    \b
        toymq tier check s3://history/orders ./data

    All sealed segments are read, on the disk and in the bucket, and compared with their checksums: the whole bucket is fetched.
    An object that only the bucket has is never deleted, unless its topic is marked as deleted there, or the offsets on the disk
    say that it was removed. The broker may run. Exit code 1: there is a finding that was not mended.
    """
    parse_tier(url)
    fs = RealFileSystem()
    check_data_directory(fs, directory)
    directory = directory.rstrip("/") or "/"
    if repair or delete:  # the bucket may be a directory of this machine, and has the owner of this one
        check_owner(fs, directory, "toymq tier check")
    bucket = open_bucket(url, fs, read_only=True)  # --repair writes to it, and makes no directory for a URL that is misspelt
    Marker(fs, bucket, url, directory).check()
    open_findings = count = 0
    for finding in compare(fs, bucket, directory, repair=repair, delete=delete):
        count += 1
        open_findings += finding.mended is None
        if as_json:
            place = {} if finding.place is None else finding.place._asdict()
            click.echo(json.dumps({**place, "text": finding.text, "mended": finding.mended}))
        else:
            click.echo(finding.text + (f": {finding.mended}" if finding.mended is not None else ""))
    if not as_json:
        click.echo(f"{url} and {directory}: {counted(count, 'finding')}, {count - open_findings} mended")
    if open_findings:
        raise SystemExit(1)


def restore_from(url: str, directory: str, *, as_json: bool, at: str | None = None) -> None:
    """Make a data directory from a bucket, and verify it. Raises: SystemExit when something is damaged or missing."""
    fs, directory = RealFileSystem(), directory.rstrip("/") or "/"
    check_owner(fs, directory, "toymq restore")
    at_ns = None if at is None else _past_ns(at)
    restored = restore(
        fs, open_bucket(url, fs, read_only=True), directory,
        pid=os.getpid(), now_ns=SystemClock.wall_ns(), progress=lambda topic: click.echo(topic, err=True), at_ns=at_ns,
    )  # fmt: skip
    reports = [verify_topic(fs, f"{directory}/topics/{name}", name) for name in topic_names(fs, directory)]
    print_reports(reports, as_json=as_json)
    bad = any(report.damaged for report in reports)
    for each in restored:
        bad = bad or bool(each.problems or each.unsealed)
        for problem in each.problems:
            click.echo(f"toymq: topic {each.place.topic}: {problem}", err=True)
        for first, last in each.unsealed:
            text = record_range(first, last, "were not sealed, or are gone from the bucket")
            click.echo(f"toymq: topic {each.place.topic}: {text}", err=True)
        if each.unnamed:
            which = f"{counted(each.unnamed, 'segment')} without a seal that names the topic"
            click.echo(f"toymq: topic {each.place.topic}: {which}: that nothing was exchanged is not known", err=True)
        if each.unknown_since_ns is not None:
            text = f"what got OK after {utc(each.unknown_since_ns)}, its newest state, and was not sealed may be lost"
            click.echo(f"toymq: topic {each.place.topic}: {text}", err=True)
        if each.why_absent is not None:
            of = f"topic {each.place.topic}, incarnation {each.place.incarnation}"
            click.echo(f"toymq: {of}, is not restored: {each.why_absent}", err=True)
    for text in lost_topics(fs, directory):
        click.echo(f"toymq: {text}", err=True)
    if not as_json:
        for each in restored:
            state = "" if each.state_ns is None else f", consumers and settings as of {utc(each.state_ns)}"
            if each.why_absent is None:
                click.echo(f"{each.place.topic}: {counted(each.segments, 'segment')}{state}; the next id is {each.next_id}")
        name = shlex.quote(directory)
        if at_ns is not None:
            click.echo(f"{directory} is as it was at {utc(at_ns)}, as far as nothing else is said above")
        if bad:
            click.echo(f"to accept the loss, or /readyz is 503: toymq repair {name}")
        click.echo(f"to serve it: toymq serve --data-dir {name} --tier {shlex.quote(url)}")
    if bad:
        raise SystemExit(1)


def _past_ns(text: str) -> int:
    """Parse a time of the past to nanoseconds since the epoch. Raises: ConfigError."""
    at_ns, now_ns = parse_time_ns(text), SystemClock.wall_ns()
    if at_ns > now_ns:
        raise ConfigError(f"{text} is in the future, now is {utc(now_ns)}: without --at the newest is restored")
    return at_ns
