"""``toymqctl dlq``: list, show, redrive and discard dead letters."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import click

from toymq import sync
from toymq_py import terminal
from toymq_py.errors import BadArgument, NoSuchTopic
from toymq_py.names import DEAD_LETTERS, PARTITION_MARK, is_dead_letters
from toymq_py.partitions import number_of
from toymq_py.records import IdRange
from toymqctl.broker import Broker
from toymqctl.gateway import ask_of_topic
from toymqctl.letters import FailureGroup, described, error_of, grouped, traceback_of, waiting
from toymqctl.lines import Row, format_option, json_flag
from toymqctl.quantities import TOPIC, Ids, MessageId
from toymqctl.tables import as_json as json_option
from toymqctl.tables import facts, fitting, print_json, printable, screen_room, size, table

FETCH_COUNT = 1000
"""Most dead letters of one FETCH, which also ends at 1 MiB."""
REDRIVE_COUNT = 10_000
"""Most dead letters of one REDRIVE: its reply waits until all are stored, and a request has a time-out."""

_DIED = f"{'died':20}"
"""As wide as the times below it, which are never cut."""
_COLUMNS = ("id", _DIED, "origin", "consumer", "attempts", "reason", "error", "key", "size")
_STATE = "state"
"""A column behind the others, where settled letters are listed, too."""
_CUT, _SPARE = (3, 5, 6, 7), (8, 2, 7, 4)
_GROUPED = ("letters", "first", "last", _DIED, "consumer", "reason", "last error")
_CUT_GROUPED, _SPARE_GROUPED = (4, 5, 6), (2, 1)
LEAST = 24
"""Characters of an error for which other columns are left out on a narrow terminal."""


SETTLED = ": they went back or were discarded before"
LISTED = "`toymqctl dlq list TOPIC` lists the ids"


class _LetterId(MessageId):
    """The type of a click argument that is the id of a dead letter."""

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        return LISTED


class _LetterIds(Ids):
    """The type of a click argument that is ids of dead letters."""

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        return LISTED


def _letters_of(topic: str) -> str:
    """Return the dead-letter topic of a topic; the name itself if it is one."""
    return topic if is_dead_letters(topic) else topic + DEAD_LETTERS


def _check_origin(client: sync.Client, letters: str) -> str:
    """Return the source topic of a dead-letter topic that does not exist. Raises: NoSuchTopic when the source topic does not
    exist either."""
    origin = letters.removesuffix(DEAD_LETTERS)
    client.describe(origin)
    return origin


@click.group()
def dlq() -> None:
    """List, show, redrive and discard dead letters.

    \b
        toymqctl dlq list                      topics that have dead letters
        toymqctl dlq list orders               dead letters of a topic, and why
        toymqctl dlq list orders --group       count them by cause
        toymqctl dlq show orders 17            one dead letter, with its traceback
        toymqctl dlq redrive orders            move all back to the consumer that failed them
        toymqctl dlq discard orders 17         it waits no longer, and does not go back

    TOPIC is the source topic or its dead-letter topic (orders, orders.dlq). `list` and `show` ack and move nothing.
    """


@dlq.command("list", short_help="List dead letters, or the topics that have some.")
@click.argument("topic", required=False, type=TOPIC)
@click.option("-n", "--lines", "count", type=click.IntRange(1), default=100, help="Show at most this many.")
@click.option("--all", "everything", is_flag=True, help="Also show those that went back or were discarded.")
@click.option("--group", "group", is_flag=True, help="Count those with the same consumer, reason and type of error.")
@json_option
@click.pass_obj
def list_letters(broker: Broker, topic: str | None, count: int, everything: bool, group: bool, as_json: bool) -> None:
    """List the dead letters of TOPIC, or the topics that have dead letters.

    The ids of a partitioned TOPIC follow the name of their partition: `toymqctl dlq show orders#3 17`. --group counts over all
    partitions, and shows the oldest and the newest letter as `#3 17`. `origin` is the message's id in its topic; letters that
    were redriven or discarded are `settled`: the broker does not record which. On a narrow terminal columns are left out to
    show the error, and long values are cut; --json prints all.
    """
    if group and topic is None:
        raise click.UsageError("--group needs a TOPIC")
    with broker.connect() as client:
        if topic is None:
            _list_topics(client, broker, everything=everything, as_json=as_json)
            return
        letters = _letters(client, _letters_of(topic), everything=everything)
        if group:
            groups = grouped(letters)[:count]
            lines = [_GROUPED, *(_group_line(group, _letters_of(topic)) for group in groups)]
            _show([group.to_json() for group in groups], lines, _CUT_GROUPED, _SPARE_GROUPED, as_json=as_json)
            return
        listed = [described(row, settled) for row, settled in islice(letters, count)]
        lines = [_COLUMNS, *map(_line, listed)]
        if everything:
            states = (_STATE, *("settled" if each["settled"] else "waiting" for each in listed))
            lines = [(*line, state) for line, state in zip(lines, states, strict=True)]
        if any(each["topic"] != _letters_of(topic) for each in listed):  # never cut: an id means nothing without it
            lines = [(first, *line) for first, line in zip(("topic", *(each["topic"] for each in listed)), lines, strict=True)]
            _show(listed, lines, [at + 1 for at in _CUT], [at + 1 for at in _SPARE], as_json=as_json)
        else:
            _show(listed, lines, _CUT, _SPARE, as_json=as_json)


def _show(
    found: list[dict[str, Any]], lines: list[tuple[str, ...]], cut: Sequence[int], spare: Sequence[int], *, as_json: bool
) -> None:
    """Print what was found, as JSON or as a table with one line for each."""
    if as_json:
        print_json(found)
    elif found:
        click.echo(fitting(lines, cut, screen_room(), spare, least=LEAST))
    else:
        click.echo("no dead letters")


def _list_topics(client: sync.Client, broker: Broker, *, everything: bool, as_json: bool) -> None:
    rows = []
    for found in client.topics():
        if is_dead_letters(found["topic"]) and found["messages"] and (waiting(found) or everything):
            rows.append({"topic": found["topic"], "letters": waiting(found), "settled": found["messages"] - waiting(found)})
    if as_json:
        print_json(rows)
    elif rows:
        lines = [tuple(map(str, row.values())) for row in rows]
        click.echo(table([tuple(rows[0]), *lines], room=screen_room()))
    else:
        click.echo(f"no dead letters{broker.as_far_as_seen}")


def _letters(client: sync.Client, topic: str, *, everything: bool) -> Iterator[tuple[Row, bool]]:
    """Yield dead letters of a topic, each with whether it was redriven or discarded. Raises: NoSuchTopic."""
    from toymq_py.storage.record import iter_frames  # only tail also needs the records' codec

    try:
        found = client.describe(topic)
    except NoSuchTopic:
        _check_origin(client, topic)
        return
    if "parts" in found:
        for part in found["parts"]:
            yield from _letters(client, part["topic"], everything=everything)
        return
    settled: list[IdRange] = [(first, last) for first, last in found.get("redriven", ())]
    at, end = found["first_id"], found["next_id"]
    while at < end:
        passed = 0 if everything else next((last + 1 for first, last in settled if first <= at <= last), 0)
        if passed:
            at = passed
            continue
        batch = client.fetch(topic, at, FETCH_COUNT)
        for frame in iter_frames(batch.frames):
            is_settled = any(first <= frame.msg_id <= last for first, last in settled)
            if frame.msg_id < end and (everything or not is_settled):
                row = Row.fetched(topic, frame.msg_id, frame.ts_ns, frame.key, frame.headers, frame.payload)
                yield row, is_settled
        at = batch.next_id


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    shown = [row[name] for name in ("origin_id", "consumer", "attempts", "reason", "error", "key")]
    return (str(row["id"]), _time(row["ts_ns"]), *map(_cell, shown), size(row["bytes"]))


def _group_line(group: FailureGroup, asked: str) -> tuple[str, ...]:
    newest = group.newest
    shown = [newest[name] for name in ("consumer", "reason", "error")]
    ids = (_id_in(letter, asked) for letter in (group.oldest, newest))
    return (str(group.count), *ids, _time(newest["ts_ns"]), *map(_cell, shown))


def _id_in(letter: dict[str, Any], asked: str) -> str:
    """Return a letter's id as it is shown; after its partition, ``#3 17``, if all partitions were asked for."""
    if letter["topic"] == asked:
        return str(letter["id"])
    return f"{PARTITION_MARK}{number_of(letter['topic'])} {letter['id']}"


def _cell(found: object) -> str:
    return "-" if found is None else str(found)


def _time(ts_ns: int) -> str:
    return datetime.fromtimestamp(ts_ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


@dlq.command(short_help="Show one dead letter, with its traceback and payload.")
@click.argument("topic", type=TOPIC)
@click.argument("letter", metavar="ID", type=_LetterId())
@format_option
@json_flag
@click.pass_obj
def show(broker: Broker, topic: str, letter: int, form: str) -> None:
    """Show the dead letter ID of TOPIC: its headers, the traceback of its last failure, its payload. --format raw prints the
    payload alone."""
    from toymq_py.storage.record import iter_frames

    name = _letters_of(topic)
    with broker.connect() as client:
        try:
            batch = client.fetch(name, letter, 1)
        except NoSuchTopic:
            raise BadArgument(f"{_check_origin(client, name)} has no dead letters") from None
    frames = [frame for frame in iter_frames(batch.frames) if frame.msg_id == letter]
    if not frames:
        raise BadArgument(f"{name} has no dead letter {letter}: `toymqctl dlq list` shows those that it has")
    (frame,) = frames
    row = Row.fetched(name, frame.msg_id, frame.ts_ns, frame.key, frame.headers, frame.payload)
    if form == "text":
        lines = traceback_of(row.headers)
        headers = [header for header in row.headers.items() if not (lines and header[0] == "toymq-traceback")]
        click.echo(facts([("id", str(row.id)), ("died", _time(row.ts_ns)), *headers]))
        if lines:
            click.echo()
            click.echo("\n".join(map(printable, [*lines, error_of(row.headers) or ""])))
        click.echo()
    terminal.write(row.payload + b"\n" if form == "text" else row.format(form))


@dlq.command(short_help="Move dead letters back to the consumer that failed them.")
@click.argument("topic", type=TOPIC)
@click.argument("ids", required=False, type=Ids())
@click.option("--max", "max_count", type=click.IntRange(1), help="Move at most this many.")
@click.pass_obj
def redrive(broker: Broker, topic: str, ids: tuple[IdRange, ...] | None, max_count: int | None) -> None:
    """Move dead letters IDS (7, 3-9 or 3-9,12) back to TOPIC, or all of them.

    They are delivered to the consumer that failed them, and to no other. Each moves once; one that fails again becomes a
    new dead letter.
    """
    name = _letters_of(topic)
    total = 0
    note = ""
    with broker.connect() as client:
        try:
            if "parts" in client.describe(name):
                if ids is not None or max_count is not None:
                    raise BadArgument(f"{topic} has several partitions: name one, such as {name.removesuffix(DEAD_LETTERS)}#3")
                click.echo(f"sent back {client.redrive(name)}")
                return
            while max_count is None or total < max_count:
                ask = REDRIVE_COUNT if max_count is None else min(max_count - total, REDRIVE_COUNT)
                count = client.redrive(name, ids=ids, max=ask)
                total += count
                if count < ask:
                    break
            if ids is not None and not total:
                found = client.describe(name)
                _check_ids(name, ids, found["first_id"], found["next_id"])
                note = SETTLED
        except NoSuchTopic:
            note = f": {_check_origin(client, name)} has no dead letters"
            if ids is not None:
                _check_ids(name, ids, 0, 0)
    click.echo(f"sent back {total}{note}")


@dlq.command(short_help="Settle dead letters that are not wanted back.")
@click.argument("topic", type=TOPIC)
@click.argument("ids", type=_LetterIds())
@click.pass_obj
def discard(broker: Broker, topic: str, ids: tuple[IdRange, ...]) -> None:
    """Settle the dead letters IDS (7, 3-9 or 3-9,12) of TOPIC: they wait no longer, and no redrive brings them back.

    Their records stay until retention drops them; `dlq list --all` has them. The broker needs --http or --https.
    """
    name = _letters_of(topic)
    with broker.connect() as client:
        try:
            found = client.describe(name)
        except NoSuchTopic:
            raise BadArgument(f"{_check_origin(client, name)} has no dead letters") from None
    _check_ids(name, ids, found["first_id"], found["next_id"])
    wanted = [first if first == last else f"{first}-{last}" for first, last in ids]
    done = ask_of_topic(broker, "POST", name, ":discard", {"ids": wanted})["discarded"]
    click.echo(f"discarded {done}{'' if done else SETTLED}")


def _check_ids(name: str, ids: tuple[IdRange, ...], first_id: int, next_id: int) -> None:
    """Check that at least one of the ids can be a dead letter's. Raises: BadArgument."""
    if not any(first < next_id and last >= first_id for first, last in ids):
        asked = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ids)
        raise BadArgument(f"{name} has no dead letter {asked}: `toymqctl dlq list` shows those that it has")
