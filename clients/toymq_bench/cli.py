"""The ``toymq-bench`` group. Exit code 0: measured; 1: failed; 2: wrong usage."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from toymq.click_support import HELP_SETTINGS, OneLineErrors
from toymq_bench import backlog, client_load, commits, compare, delays, http_load, machine, worker_load
from toymq_bench import goals as goal_rows
from toymq_bench import profile as profiles
from toymq_bench.bench import Bench
from toymq_bench.broker import Broker, StartedBroker
from toymq_bench.disk import GROUP, RECORD_OVERHEAD_BYTES
from toymq_bench.options import DATA_DIR, POSITIVE, attachable, place, started, timing
from toymq_bench.peers_command import peers
from toymq_bench.result import Session
from toymq_bench.traffic import Plan, Traffic, measure_with_pings
from toymq_py.consumer_options import Mode
from toymq_py.records import PAYLOAD_BYTES_LIMIT


@click.group("toymq-bench", cls=OneLineErrors, context_settings=HELP_SETTINGS)
@click.version_option(package_name="toymq", prog_name="toymq-bench")
def main() -> None:
    """Measure a broker: throughput, latency, CPU per message, memory, and the limit of the disk itself.

    Each scenario starts the installed toymq on a fresh directory, or measures a running one (--connect, --pid). Options of
    `toymq serve` follow after `--`. Linux only.

    \b
        toymq-bench pub --producers 16 --window 256
        toymq-bench pub --producers 4 --rate 1000
        toymq-bench e2e --seconds 10s --runs 5 --json e2e.json
        toymq-bench pub --connect 127.0.0.1:6789 --pid 4711
        toymq-bench pub -- --segment-bytes 16MiB
        toymq-bench pub --topics 16 --no-keys -- --workers 2
    """


SIZE = click.option("--size", type=click.IntRange(0, PAYLOAD_BYTES_LIMIT), default=256, help="Payload bytes.")
PRODUCERS = click.option("--producers", type=POSITIVE, default=16, help="Publishing connections.")
WINDOW = click.option("--window", type=POSITIVE, default=256, help="Unanswered publishes per connection.")
TOPICS = click.option("--topics", type=POSITIVE, default=1, help="Topics; connection i uses topic i modulo this.")
RATE = click.option("--rate", type=click.FloatRange(1), help=(
    "Publishes per second of all producers together, at fixed times (open loop): latency counts from the intended time."
))  # fmt: skip
KEYS = click.option("--keys/--no-keys", "keyed", default=True, help="Publish each message with a new dedupe key.")
CONSUMER_WINDOW = click.option("--consumer-window", type=POSITIVE, default=4096, help="Unacked deliveries per consumer.")


def run_traffic(bench: Bench, scenario: str, traffic: Traffic, **parameters: object) -> None:
    """Run a scenario of publishers and consumers ``bench.runs`` times."""
    if traffic.rate is not None:
        parameters["rate"] = traffic.rate
    if not traffic.keyed:
        parameters["keys"] = "none"
    bench.run_traffic(scenario, {**parameters, "size": traffic.size}, traffic)


def check_stamp(size: int, keyed: bool) -> None:
    if not keyed and size < 12:
        raise click.UsageError("without keys the payload carries the send time: use --size 12 or more")


@main.command()
@PRODUCERS
@WINDOW
@SIZE
@TOPICS
@KEYS
@RATE
@timing
@attachable
def pub(bench: Bench, producers: int, window: int, size: int, topics: int, keyed: bool, rate: float | None) -> None:
    """Publish only."""
    traffic = Traffic(producers, window, size, topics, rate=rate, keyed=keyed)
    run_traffic(bench, "pub", traffic, producers=producers, window=window, topics=topics)


@main.command()
@click.option("--producers", type=POSITIVE, default=1, help="Publishing connections.")
@click.option("--consumers", type=POSITIVE, default=1, help="Consuming connections; each gets every message.")
@click.option("--window", type=POSITIVE, default=4096, help="Unanswered publishes per connection.")
@CONSUMER_WINDOW
@click.option("--single-acks", is_flag=True, help="Ack each message by itself; default: one range per socket read.")
@click.option("--mode", type=click.Choice(["shared", "keyed"]), help="The consumers share the messages so, and ack each by "
              "itself; default: each gets all.")  # fmt: skip
@SIZE
@TOPICS
@KEYS
@RATE
@timing
@attachable
def e2e(
    bench: Bench, producers: int, consumers: int, window: int, consumer_window: int, single_acks: bool, size: int, topics: int,
    keyed: bool, rate: float | None, mode: Mode | None,
) -> None:  # fmt: skip
    """Publish and consume at the same time, and ack every message."""
    check_stamp(size, keyed)
    if mode is not None and not keyed:
        raise click.UsageError("--mode needs the keys: they are the groups, and carry the send time")
    traffic = Traffic(producers, window, size, topics, consumers, consumer_window, rate, keyed, single_acks, mode)
    acks = {"mode": mode} if mode else {"acks": "single"} if single_acks else {}
    run_traffic(bench, "e2e", traffic, producers=producers, consumers=consumers, window=window, topics=topics, **acks)


@main.command()
@click.option("--consumers", type=POSITIVE, default=8, help="Each gets every message.")
@click.option("--window", type=POSITIVE, default=4096, help="Unanswered publishes.")
@CONSUMER_WINDOW
@SIZE
@KEYS
@RATE
@timing
@attachable
def fanout(
    bench: Bench, consumers: int, window: int, consumer_window: int, size: int, keyed: bool, rate: float | None
) -> None:
    """Fan out: one producer, many consumers of one topic, every delivery acked. CPU is per publish."""
    check_stamp(size, keyed)
    traffic = Traffic(1, window, size, 1, consumers, consumer_window, rate, keyed)
    run_traffic(bench, "fanout", traffic, consumers=consumers, window=window)


def messages(default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The click option ``--messages``, with its default."""
    return click.option("--messages", type=POSITIVE, default=default, help="Messages to publish.")


@main.command()
@messages(1_000_000)
@click.option("--consumers", type=POSITIVE, default=1, help="Each gets every message.")
@CONSUMER_WINDOW
@SIZE
@attachable
def drain(bench: Bench, messages: int, consumers: int, consumer_window: int, size: int) -> None:
    """Consume and ack a backlog while nothing is published."""
    bench.run(
        "drain", {"messages": messages, "consumers": consumers, "size": size},
        lambda broker, label: backlog.drain(broker, messages, consumers, consumer_window, size, label),
    )  # fmt: skip


@main.command()
@messages(200_000)
@CONSUMER_WINDOW
@SIZE
@attachable
def redelivery(bench: Bench, messages: int, consumer_window: int, size: int) -> None:
    """Nack every message of a backlog once, and ack its second delivery."""
    bench.run(
        "redelivery", {"messages": messages, "size": size},
        lambda broker, label: backlog.redelivery(broker, messages, consumer_window, size, label),
    )  # fmt: skip


@main.command()
@messages(1_000_000)
@click.option("--cycles", type=POSITIVE, default=5000, help="Messages to consume at each depth.")
@SIZE
@attachable
def depth(bench: Bench, messages: int, cycles: int, size: int) -> None:
    """Compare the time from ACK to the next delivery at a large backlog and at a backlog of ten; medians."""
    if messages <= cycles + backlog.SHALLOW:
        raise click.UsageError("--messages must exceed --cycles: the backlog would run empty")
    bench.run(
        "depth", {"messages": messages, "size": size},
        lambda broker, label: backlog.depth(broker, messages, cycles, size, label),
    )  # fmt: skip


def _of_stored_messages(name: str, once: Callable[[Broker, int, int, str], dict[str, float]], about: str) -> None:
    """Add a command that starts a broker, stores messages and measures once."""

    @main.command(name, help=about)
    @messages(1_000_000)
    @SIZE
    @started
    def scenario(bench: Bench, messages: int, size: int) -> None:
        bench.run(
            name, {"messages": messages, "size": size}, lambda broker, label: once(broker, messages, size, label)
        )


_of_stored_messages(
    "recovery", backlog.recovery,
    "Time from process start to ready, and to the first delivery, of a broker with messages that was killed.",
)  # fmt: skip
_of_stored_messages("memory", backlog.stored, "Resident memory of a broker with stored messages and no consumer.")
_of_stored_messages(
    "verify", backlog.verify, "Log bytes per CPU second that `toymq verify` checks, start of the interpreter included."
)


@main.command()
@click.option("--sessions", type=POSITIVE, default=10_000, help="Idle connections.")
@attachable
def idle(bench: Bench, sessions: int) -> None:
    """Resident memory with idle connections."""
    bench.run_idle(sessions)


@main.command()
@messages(1_000_000)
@click.option("--lead", "lead_s", type=click.FloatRange(0.1), default=30.0,
              help="Seconds from the first publish to the first due time; publishing has to end before.")  # fmt: skip
@click.option("--span", "span_s", type=click.FloatRange(0.1), default=60.0,
              help="Seconds over which due times are spread.")  # fmt: skip
@click.option("--seed", type=int, default=1, help="Seed of the due times.")
@CONSUMER_WINDOW
@SIZE
@attachable
def delay(bench: Bench, messages: int, lead_s: float, span_s: float, seed: int, consumer_window: int, size: int) -> None:
    """Publish with random delays: how late messages arrive, and how long PINGs take meanwhile."""
    if size < delays.DIGITS:
        raise click.UsageError(f"the payload carries the due time: use --size {delays.DIGITS} or more")
    bench.run(
        "delay", {"messages": messages, "span": span_s, "size": size},
        lambda broker, label: delays.delay(broker, messages, lead_s, span_s, consumer_window, size, seed, label),
    )  # fmt: skip


@main.command()
@PRODUCERS
@click.option("--consumers", type=click.IntRange(0), default=1, help="Consuming connections; each gets and acks every message.")
@WINDOW
@SIZE
@timing
@attachable
def lag(bench: Bench, producers: int, consumers: int, window: int, size: int) -> None:
    """Longest stalls of the broker's event loop under full load: PING round trips from another process."""
    traffic = Traffic(producers, window, size, consumers=consumers)
    bench.run(
        "lag", {"producers": producers, "window": window, "consumers": consumers, "size": size},
        lambda broker, label: measure_with_pings(broker, traffic, bench.plan, label),
    )  # fmt: skip


@main.command()
@messages(100_000)
@click.option("--kind", type=click.Choice(["asyncio", "blocking"]), default="asyncio", help="Kind of client.")
@SIZE
@KEYS
@attachable
def client(bench: Bench, messages: int, kind: str, size: int, keyed: bool) -> None:
    """Throughput of the Python client: pub_many to one subscriber in the same process, every message acked.

    With --no-keys the client numbers messages. The asyncio client publishes and consumes at the same time, the blocking
    client one after the other.
    """
    keys = {} if keyed else {"keys": "none"}
    bench.run(
        "client", {"kind": kind, "messages": messages, "size": size, **keys},
        lambda broker, label: client_load.measure(broker, kind, messages, size, label, keyed=keyed),
    )  # fmt: skip


@main.command()
@messages(100_000)
@click.option("--kind", type=click.Choice(["async", "thread"]), default="async", help="A coroutine function, or a plain one.")
@click.option("--concurrency", type=click.IntRange(1, 10_000), default=64, help="Most jobs at once.")
@attachable
def worker(bench: Bench, messages: int, kind: str, concurrency: int) -> None:
    """Throughput of `toymq worker` on one core: stored jobs of a function that does nothing.

    The worker's process is bound to the last core, the broker to the others.
    """
    bench.run(
        "worker", {"kind": kind, "messages": messages, "concurrency": concurrency},
        lambda broker, label: worker_load.measure(broker, kind, messages, concurrency, label),
    )  # fmt: skip


@main.command()
@click.option("--connections", type=POSITIVE, default=64, help="Kept-alive connections, one request at a time on each.")
@click.option("--batch", type=click.IntRange(1, 100_000), default=1, help="Messages per request.")
@SIZE
@KEYS
@timing
@started
def http(bench: Bench, connections: int, batch: int, size: int, keyed: bool) -> None:
    """Publish through the HTTP gateway only."""

    def once(broker: Broker, label: str) -> dict[str, float]:
        assert isinstance(broker, StartedBroker)
        return http_load.measure(broker, connections, size, batch, bench.plan, label, keyed=keyed)

    keys = {} if keyed else {"keys": "none"}
    bench.run(
        "http", {"connections": connections, "batch": batch, "size": size, **keys}, once,
        options=http_load.OPTIONS, commit=(size + RECORD_OVERHEAD_BYTES, GROUP),
    )  # fmt: skip


@main.command()
@PRODUCERS
@click.option("--consumers", type=click.IntRange(0), default=0, help="Consuming connections; each gets and acks every message.")
@WINDOW
@SIZE
@KEYS
@timing
@DATA_DIR
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default="profile.svg",
              help="File of the flame graph.")  # fmt: skip
def profile(
    producers: int, consumers: int, window: int, size: int, keyed: bool, seconds: float, warmup_s: float, directory: Path,
    out: Path,
) -> None:  # fmt: skip
    """Profile the broker with py-spy: a flame graph, and the ten hottest lines in microseconds per message."""
    traffic = Traffic(producers, window, size, consumers=consumers, keyed=keyed)
    for line in profiles.run(traffic, Plan(seconds, warmup_s), directory, out):
        click.echo(line)


@main.command()
@click.option("--messages", type=POSITIVE, default=goal_rows.MESSAGES,
              help="Size of the backlog where a goal needs one.")  # fmt: skip
@timing
@started
def goals(bench: Bench, messages: int) -> list[str]:
    """Measure every row of the goals table: value, floor, goal, and the disk limit at that time.

    The goals' 10 million messages take about ten minutes and 4 GB. `--messages 1000000` is quicker and marks its rows.
    """
    if messages <= goal_rows.CYCLES + backlog.SHALLOW:
        raise click.UsageError(f"--messages must exceed {goal_rows.CYCLES + backlog.SHALLOW}")
    goal_rows.run(bench, messages)
    return [machine.line(bench.session().machine), *goal_rows.lines(bench.results)]


@main.command(name="compare")
@click.argument("before", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("after", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def compare_command(before: Path, after: Path) -> None:
    """Compare two files of --json: medians, change, and whether the ranges of the runs overlap."""
    for line in compare.lines(Session.load(before), Session.load(after)):
        click.echo(line)


@main.command(name="commits")
@click.option("--base", required=True, metavar="REF", help="Commit to compare with: any git revision.")
@timing
@place
def commits_command(base: str, seconds: float, warmup_s: float, runs: int, directory: Path) -> None:
    """Compare CPU per message of a base commit and this checkout, uncommitted changes included; runs alternate.

    Run it inside the checkout. The base commit is checked out into a temporary git worktree.
    """
    for line in compare.lines(*commits.run(base, Plan(seconds, warmup_s), runs, directory)):
        click.echo(line)


main.add_command(peers)
