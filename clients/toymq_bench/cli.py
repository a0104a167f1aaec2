"""The ``toymq-bench`` group. Exit code 0: it was measured; 1: it could not be; 2: it was asked in a wrong way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from toymq.click_support import OneLineErrors
from toymq_bench import backlog, client_load, commits, compare, delays, http_load, machine
from toymq_bench import goals as goal_rows
from toymq_bench import profile as profiles
from toymq_bench.bench import Bench
from toymq_bench.broker import Broker, StartedBroker
from toymq_bench.disk import GROUP, RECORD_OVERHEAD_BYTES
from toymq_bench.options import POSITIVE, attachable, place, started, timing
from toymq_bench.peers_command import peers
from toymq_bench.result import Session
from toymq_bench.traffic import Plan, Traffic, held


@click.group("toymq-bench", cls=OneLineErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="toymq", prog_name="toymq-bench")
def main() -> None:
    """Measure a broker: rate, latency, CPU per message, memory, and the limit of the disk itself.

    Each scenario starts the installed toymq on a fresh directory, or measures one that runs (--connect, --pid). Options of
    `toymq serve` follow after `--`. Linux only.

    \b
        toymq-bench pub --producers 16 --window 256
        toymq-bench pub --producers 4 --rate 1000
        toymq-bench e2e --seconds 10s --runs 5 --json e2e.json
        toymq-bench pub --connect 127.0.0.1:6789 --pid 4711
        toymq-bench pub -- --segment-bytes 16MiB
    """


SIZE = click.option("--size", type=click.IntRange(0), default=256, show_default=True, help="Bytes of a payload.")
PRODUCERS = click.option("--producers", type=POSITIVE, default=16, show_default=True, help="Connections.")
WINDOW = click.option("--window", type=POSITIVE, default=256, show_default=True, help="Publishes outstanding on each of them.")
TOPICS = click.option("--topics", type=POSITIVE, default=1, show_default=True, help="Connection i takes topic i modulo these.")
RATE = click.option("--rate", type=click.FloatRange(1), help=(
    "Publishes a second of all producers, whatever is answered (open loop): latency counts from the intended time."
))  # fmt: skip
KEYS = click.option("--keys/--no-keys", "keyed", default=True, show_default=True, help="A new dedupe key for each message.")
CONSUMER_WINDOW = click.option("--consumer-window", type=POSITIVE, default=4096, show_default=True, help="Deliveries unacked.")


def run_traffic(bench: Bench, scenario: str, traffic: Traffic, **parameters: object) -> None:
    """Measure it as often as asked."""
    if traffic.rate is not None:
        parameters["rate"] = traffic.rate
    if not traffic.keyed:
        parameters["keys"] = "none"
    bench.run_traffic(scenario, {**parameters, "size": traffic.size}, traffic)


def check_stamp(size: int, keyed: bool) -> None:
    if not keyed and size < 12:
        raise click.UsageError("without keys the send time travels in the payload: --size 12 is the least")


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
    """Publish, nothing else."""
    traffic = Traffic(producers, window, size, topics, rate=rate, keyed=keyed)
    run_traffic(bench, "pub", traffic, producers=producers, window=window, topics=topics)


@main.command()
@click.option("--producers", type=POSITIVE, default=1, show_default=True, help="Publishing connections.")
@click.option("--consumers", type=POSITIVE, default=1, show_default=True, help="Consuming connections; each gets everything.")
@click.option("--window", type=POSITIVE, default=4096, show_default=True, help="Publishes outstanding on each connection.")
@CONSUMER_WINDOW
@click.option("--single-acks", is_flag=True, help="An ACK for each message; by default a range for what one read brought.")
@SIZE
@TOPICS
@KEYS
@RATE
@timing
@attachable
def e2e(
    bench: Bench, producers: int, consumers: int, window: int, consumer_window: int, single_acks: bool, size: int, topics: int,
    keyed: bool, rate: float | None,
) -> None:  # fmt: skip
    """Publish and consume at the same time; every message is acked."""
    check_stamp(size, keyed)
    traffic = Traffic(producers, window, size, topics, consumers, consumer_window, rate, keyed, single_acks)
    acks = {"acks": "single"} if single_acks else {}
    run_traffic(bench, "e2e", traffic, producers=producers, consumers=consumers, window=window, topics=topics, **acks)


@main.command()
@click.option("--consumers", type=POSITIVE, default=8, show_default=True, help="Each gets every message.")
@click.option("--window", type=POSITIVE, default=4096, show_default=True, help="Publishes outstanding.")
@CONSUMER_WINDOW
@SIZE
@KEYS
@RATE
@timing
@attachable
def fanout(
    bench: Bench, consumers: int, window: int, consumer_window: int, size: int, keyed: bool, rate: float | None
) -> None:
    """One producer to many consumers of one topic; every delivery is acked. CPU is given per publish."""
    check_stamp(size, keyed)
    traffic = Traffic(1, window, size, 1, consumers, consumer_window, rate, keyed)
    run_traffic(bench, "fanout", traffic, consumers=consumers, window=window)


def messages(default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option ``--messages``: size of the backlog."""
    return click.option("--messages", type=POSITIVE, default=default, show_default=True, help="How many are there at first.")


@main.command()
@messages(1_000_000)
@click.option("--consumers", type=POSITIVE, default=1, show_default=True, help="Each gets every message.")
@CONSUMER_WINDOW
@SIZE
@attachable
def drain(bench: Bench, messages: int, consumers: int, consumer_window: int, size: int) -> None:
    """Consume a backlog, acked to the end; nothing is published meanwhile."""
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
    """Give every message of a backlog back once (NACK) and ack its second delivery."""
    bench.run(
        "redelivery", {"messages": messages, "size": size},
        lambda broker, label: backlog.redelivery(broker, messages, consumer_window, size, label),
    )  # fmt: skip


@main.command()
@messages(1_000_000)
@click.option("--cycles", type=POSITIVE, default=5000, show_default=True, help="Consumes at each depth.")
@SIZE
@attachable
def depth(bench: Bench, messages: int, cycles: int, size: int) -> None:
    """One consume (ACK to the next delivery) at a large backlog against one at a backlog of ten; medians."""
    if messages <= cycles + backlog.SHALLOW:
        raise click.UsageError("--messages must be more than --cycles: the backlog would run dry")
    bench.run(
        "depth", {"messages": messages, "size": size},
        lambda broker, label: backlog.depth(broker, messages, cycles, size, label),
    )  # fmt: skip


def _of_stored_messages(name: str, once: Callable[[Broker, int, int, str], dict[str, float]], about: str) -> None:
    """Add a command that starts a broker, stores messages and measures something of it."""

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
    "SIGKILL a broker with messages; from the start of the process until it listens, and until the first delivery.",
)  # fmt: skip
_of_stored_messages("memory", backlog.stored, "Resident memory of a broker with messages stored and no consumer.")
_of_stored_messages(
    "verify", backlog.verify, "Log bytes that `toymq verify` checks per CPU second, its interpreter's start included."
)


@main.command()
@click.option("--sessions", type=POSITIVE, default=10_000, show_default=True, help="Connections that say nothing.")
@attachable
def idle(bench: Bench, sessions: int) -> None:
    """Resident memory with idle sessions."""
    bench.run_idle(sessions)


@main.command()
@messages(1_000_000)
@click.option("--lead", "lead_s", type=click.FloatRange(0.1), default=30.0, show_default=True,
              help="Seconds from the first publish to the first moment; publishing has to be done by then.")  # fmt: skip
@click.option("--span", "span_s", type=click.FloatRange(0.1), default=60.0, show_default=True,
              help="Seconds over which the moments are spread.")  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, help="Of the moments.")
@CONSUMER_WINDOW
@SIZE
@attachable
def delay(bench: Bench, messages: int, lead_s: float, span_s: float, seed: int, consumer_window: int, size: int) -> None:
    """Publish with delays that end at random moments; how late the messages come, and how long PINGs take meanwhile."""
    if size < delays.DIGITS:
        raise click.UsageError(f"the delay travels in the payload: --size {delays.DIGITS} is the least")
    bench.run(
        "delay", {"messages": messages, "span": span_s, "size": size},
        lambda broker, label: delays.delay(broker, messages, lead_s, span_s, consumer_window, size, seed, label),
    )  # fmt: skip


@main.command()
@PRODUCERS
@click.option("--consumers", type=click.IntRange(0), default=1, show_default=True, help="Each gets everything and acks it.")
@WINDOW
@SIZE
@timing
@attachable
def lag(bench: Bench, producers: int, consumers: int, window: int, size: int) -> None:
    """The longest stalls of the broker's loop under full load: round trips of PINGs from another process."""
    traffic = Traffic(producers, window, size, consumers=consumers)
    bench.run(
        "lag", {"producers": producers, "window": window, "consumers": consumers, "size": size},
        lambda broker, label: held(broker, traffic, bench.plan, label),
    )  # fmt: skip


@main.command()
@messages(100_000)
@click.option("--kind", type=click.Choice(["asyncio", "blocking"]), default="asyncio", show_default=True, help="Which client.")
@SIZE
@KEYS
@attachable
def client(bench: Bench, messages: int, kind: str, size: int, keyed: bool) -> None:
    """The Python client: pub_many to one subscriber of the same process, each message acked.

    With --no-keys the client numbers them. asyncio: both at the same time; blocking: one after the other.
    """
    keys = {} if keyed else {"keys": "none"}
    bench.run(
        "client", {"kind": kind, "messages": messages, "size": size, **keys},
        lambda broker, label: client_load.measure(broker, kind, messages, size, label, keyed=keyed),
    )  # fmt: skip


@main.command()
@click.option("--connections", type=POSITIVE, default=64, show_default=True, help="Kept alive; one request at a time on each.")
@click.option("--batch", type=click.IntRange(1, 100_000), default=1, show_default=True, help="Messages in a request.")
@SIZE
@KEYS
@timing
@started
def http(bench: Bench, connections: int, batch: int, size: int, keyed: bool) -> None:
    """Publish through the HTTP gateway, nothing else."""

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
@click.option("--consumers", type=click.IntRange(0), default=0, show_default=True, help="Each gets everything and acks it.")
@WINDOW
@SIZE
@KEYS
@timing
@click.option("--data-dir", "directory", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".",
              show_default=True, help="A fresh directory is made below it, and removed.")  # fmt: skip
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default="profile.svg", show_default=True,
              help="The flame graph.")  # fmt: skip
def profile(
    producers: int, consumers: int, window: int, size: int, keyed: bool, seconds: float, warmup_s: float, directory: Path,
    out: Path,
) -> None:  # fmt: skip
    """Where the broker's time goes: a flame graph, and its ten hottest lines in microseconds a message (py-spy)."""
    traffic = Traffic(producers, window, size, consumers=consumers, keyed=keyed)
    for line in profiles.run(traffic, Plan(seconds, warmup_s), directory, out):
        click.echo(line)


@main.command()
@click.option("--messages", type=POSITIVE, default=goal_rows.MESSAGES, show_default=True, help="Where they are stored.")
@timing
@started
def goals(bench: Bench, messages: int) -> list[str]:
    """Every row of the goals table: measured, floor, goal, and the disk limit of the same minutes.

    With 10 million messages, as the goals have it, this takes about ten minutes and 4 GB. `--messages 1000000` is quicker,
    and marks its rows.
    """
    if messages <= goal_rows.CYCLES + backlog.SHALLOW:
        raise click.UsageError(f"--messages must be more than {goal_rows.CYCLES + backlog.SHALLOW}")
    goal_rows.run(bench, messages)
    return [machine.line(bench.session().machine), *goal_rows.lines(bench.results)]


@main.command(name="compare")
@click.argument("before", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("after", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def compare_command(before: Path, after: Path) -> None:
    """Hold two files of --json against each other: medians, change, and whether the runs lie apart."""
    for line in compare.lines(Session.load(before), Session.load(after)):
        click.echo(line)


@main.command(name="commits")
@click.option("--base", required=True, metavar="REF", help="The commit to compare with, as git names it.")
@timing
@place
def commits_command(base: str, seconds: float, warmup_s: float, runs: int, directory: Path) -> None:
    """CPU per message of a base commit against this checkout, uncommitted changes included; interleaved.

    Run it inside the checkout. The base is checked out as a git worktree, which is removed afterwards.
    """
    for line in compare.lines(*commits.run(base, Plan(seconds, warmup_s), runs, directory)):
        click.echo(line)


main.add_command(peers)
