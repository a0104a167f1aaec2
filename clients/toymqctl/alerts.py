"""``toymqctl alerts``: rules by which the broker notifies a URL or a topic."""

from typing import Any

import click

from toymq.click_support import Duration
from toymq_py.names import is_pattern
from toymq_py.units import format_duration, format_size, rounded_size
from toymqctl.broker import Broker
from toymqctl.gateway import gateway_of, path_of, say_part
from toymqctl.quantities import TOPIC
from toymqctl.tables import as_json as json_option
from toymqctl.tables import duration, print_json, screen_room, table
from toymqctl.webhooks import say_tested, secret_member, secret_options

_COLUMNS = ("alert", "when", "topic", "threshold", "for", "goes to", "state")
CONDITIONS = ("lag", "age", "retrying", "letters", "unattached", "disk")
NEEDED = {
    "lag": "a number of messages, 10000", "age": "a duration with its unit, 15m", "retrying": "a number of messages, 10",
    "disk": "a size with its unit, 10GiB",
}  # fmt: skip
"""Thresholds that have no default."""


@click.group(invoke_without_command=True, short_help="Tell a URL or a topic when something is wrong.")
@json_option
@click.pass_context
def alerts(ctx: click.Context, *, as_json: bool) -> None:
    """Notify a URL or a topic when something is wrong; without a command: list the rules and what fires.

    \b
        toymqctl alerts set late lag 'orders.*' 10000 --for 5m --url https://example.com/hook
        toymqctl alerts set old age orders 15m --url https://example.com/hook
        toymqctl alerts set failing retrying 'orders.*' 10 --for 5m --url https://example.com/hook
        toymqctl alerts set dead letters '>' --to alerts        write to the topic alerts
        toymqctl alerts set lost unattached jobs --for 2m --to alerts
        toymqctl alerts set full disk 10GiB --url https://example.com/hook
        toymqctl alerts test late                               does the URL answer?
        toymqctl alerts                                         list them, and what fires
        toymqctl alerts delete late

    \b
        lag         messages of a consumer that are or were due and are not acked, those that were given back among them
        age         how long the oldest of these has been due
        retrying    messages of a consumer that are not acked after a failed delivery: a NACK, or a lease that ended
        letters     dead letters of a topic that wait: not settled (threshold 1)
        unattached  messages of a consumer that nothing is attached to, or of a topic without a consumer (threshold 1)
        disk        free space where the data directory is: 10GiB

    A rule sends a notice for each topic when it begins to fire, repeats it while it fires, and sends one when it is resolved.
    The broker needs --http or --https. A URL on its own machine or network needs --private-webhooks.
    """
    if ctx.invoked_subcommand is None:
        _show(ctx.obj, as_json=as_json)


@alerts.command("list")
@json_option
@click.pass_obj
def list_alerts(broker: Broker, *, as_json: bool) -> None:
    """List the rules, and what fires."""
    _show(broker, as_json=as_json)


def _show(broker: Broker, *, as_json: bool) -> None:
    answer = gateway_of(broker).ask("GET", "/v1/alerts")
    found = answer["alerts"]
    if as_json:
        print_json(found)
        return
    say_part(answer, "alerts")
    if found:
        click.echo(table([_COLUMNS, *map(_row, found)], text=(0, 1, 2, 5, 6), room=screen_room()))
        for each in found:
            for trouble in each["troubles"]:
                if trouble["firing"]:
                    click.echo(f"{each['name']}: {_trouble(each, trouble)}")
            if each["failure"] is not None:
                click.echo(f"{each['name']}: its last notice was not taken: {each['failure']}")
    else:
        click.echo("no alerts: `toymqctl alerts set NAME WHEN TOPIC THRESHOLD --url URL` makes one")


def _row(found: dict[str, Any]) -> tuple[str, ...]:
    pending = len(found["troubles"]) - sum(trouble["firing"] for trouble in found["troubles"])
    state = f"{found['firing']} firing" if found["firing"] else "ok"
    return (
        found["name"], found["when"], found["topic"] or "-", _value(found, found["threshold"]),
        format_duration(found["for_ms"]), found["url"] or f"topic {found['to']}",
        f"{state}, {pending} pending" if pending else state,
    )  # fmt: skip


def _trouble(found: dict[str, Any], trouble: dict[str, Any]) -> str:
    where = trouble["topic"] or "disk"
    if trouble["consumer"]:
        where = f"consumer {trouble['consumer']} of {where}"
    value = trouble["value"]
    match found["unit"]:
        case "bytes":
            return f"{where}: {rounded_size(value)}"
        case "ms":
            return f"{where}: {duration(value / 1000)}"
        case _:
            return f"{where}: {value}"


def _value(found: dict[str, Any], value: int) -> str:
    if found["unit"] == "bytes":
        return format_size(value)
    return format_duration(value) if found["unit"] == "ms" else str(value)


@alerts.command("set", short_help="Make a rule, or replace it.")
@click.argument("name")
@click.argument("when", type=click.Choice(CONDITIONS))
@click.argument("rest", nargs=-1, metavar="[TOPIC] [THRESHOLD]", type=TOPIC)
@click.option("--for", "for_s", type=Duration(), default="1m", help="Fire when it has lasted so long.")
@click.option("--clear", help="Resolved at this value; by default at 80 % of the threshold, of disk at 120 %.")
@click.option("--repeat", "repeat_s", type=Duration(), default="4h", help="Tell again so often while it fires; 0: never.")
@click.option("--url", help="Post notices there.")
@click.option("--to", type=TOPIC, help="Write notices to this topic, instead of --url.")
@secret_options[0]
@secret_options[1]
@click.option("--timeout", "timeout_s", type=Duration(least_ms=1), default="10s", help="Longest wait for an answer of --url.")
@click.pass_obj
def set_alert(
    broker: Broker, name: str, when: str, rest: tuple[str, ...], for_s: float, clear: str | None, repeat_s: float,
    url: str | None, to: str | None, secret_file: str | None, timeout_s: float, *, no_secret: bool,
) -> None:  # fmt: skip
    """Notify --url or the topic --to when WHEN holds; replaces the rule NAME.

    TOPIC is a name or a pattern, '>' for every topic; disk takes no TOPIC. THRESHOLD is a number of messages, a duration with
    its unit (age: 15m) or a size with its unit (disk: 10GiB); for letters and unattached its default is 1.
    """
    topic, threshold = _split(when, rest)
    if threshold is None and when in NEEDED:
        raise click.UsageError(f"{when} needs a THRESHOLD: {NEEDED[when]}")
    if url is None and to is None:
        raise click.UsageError("name --url or --to: where notices go")
    if url is not None and to is not None:
        raise click.UsageError("--url and --to exclude each other: make two rules for both")
    body: dict[str, Any] = {
        "when": when, "topic": topic, "clear": clear, "for_ms": round(for_s * 1000), "repeat_ms": round(repeat_s * 1000),
        "url": url, "to": to, "timeout_ms": round(timeout_s * 1000),
    }  # fmt: skip
    if threshold is not None:
        body["threshold"] = threshold
    body |= secret_member(secret_file, no_secret=no_secret)
    gateway = gateway_of(broker)
    found = gateway.ask("PUT", path_of("alerts", name), body)
    sign = "at most" if when == "disk" else "at least"
    click.echo(
        f"{name}: {when}{f' of {topic}' if topic else ''} {sign} {_value(found, found['threshold'])} for "
        f"{format_duration(found['for_ms'])} to {found['url'] or 'topic ' + found['to']}{', signed' if found['secret'] else ''}"
    )
    if topic is not None and is_pattern(topic) and "workers" in found:
        click.echo(
            f"toymqctl: this rule watches the topics of one of {found['workers']} workers, {gateway.url}: set it at each, with "
            "`toymqctl --http-url URL`", err=True,
        )  # fmt: skip


def _split(when: str, rest: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Split the arguments after WHEN into topic and threshold. Raises: UsageError."""
    most = 1 if when == "disk" else 2
    if len(rest) > most:
        takes = "a threshold" if when == "disk" else "a topic and a threshold"
        raise click.UsageError(f"too many arguments: {when} takes {takes}")
    if when == "disk":
        return None, rest[0] if rest else None
    if not rest:
        raise click.UsageError(f"{when} needs a TOPIC: a name or a pattern, '>' for every topic")
    return rest[0], rest[1] if len(rest) == most else None


@alerts.command("delete")
@click.argument("name")
@click.pass_obj
def delete_alert(broker: Broker, name: str) -> None:
    """Delete the rule NAME. If it fires now, no notice says that it is resolved."""
    gateway_of(broker).ask("DELETE", path_of("alerts", name))
    click.echo(f"deleted {name}")


@alerts.command("test")
@click.argument("name")
@click.pass_obj
def test_alert(broker: Broker, name: str) -> None:
    """Send a notice of the rule NAME that says that it is a test, once. Exit code 1 when it is not taken."""
    say_tested(name, gateway_of(broker).ask("POST", path_of("alerts", name) + ":test")["failure"])
