"""The ``toymq-bench`` group. Exit code 0: it was measured; 1: it could not be; 2: it was asked in a wrong way."""

import click

from toymq_bench.bench import Bench
from toymq_bench.disk import GROUP, RECORD_OVERHEAD_BYTES
from toymq_bench.options import POSITIVE, attachable, timing
from toymq_bench.traffic import Traffic, measure
from toymq_py.errors import ToymqError


class _OneLineErrors(click.Group):
    """A deliberate error or an ``OSError`` is said in one line on stderr."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            click.echo(f"toymq-bench: {where}{error.strerror or error}", err=True)
        except ToymqError as error:
            click.echo(f"toymq-bench: {error}", err=True)
        raise SystemExit(1)


@click.group(cls=_OneLineErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="toymq_py", prog_name="toymq-bench")
def main() -> None:
    """Measure a broker: rate, latency, CPU per message, memory, beside what the disk itself takes.

    Each scenario starts the installed toymq on a fresh directory, or measures one that runs (--connect, --pid). Options of
    `toymq serve` follow after `--`.

    \b
        toymq-bench pub --producers 16 --window 256
        toymq-bench pub --producers 4 --rate 1000
        toymq-bench e2e --seconds 10 --runs 5 --json e2e.json
        toymq-bench pub --connect 127.0.0.1:6789 --pid 4711
        toymq-bench pub -- --segment-bytes 16MiB
    """


SIZE = click.option("--size", type=click.IntRange(0), default=256, show_default=True, help="Bytes of a payload.")
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
    group = 1 if traffic.producers * traffic.window == 1 else GROUP
    bench.run(
        scenario, {**parameters, "size": traffic.size}, lambda broker, label: measure(broker, traffic, bench.plan, label),
        commit=(traffic.size + RECORD_OVERHEAD_BYTES, group),
    )  # fmt: skip


def check_stamp(size: int, keyed: bool) -> None:
    if not keyed and size < 12:
        raise click.UsageError("without keys the send time travels in the payload: --size 12 is the least")


@main.command()
@click.option("--producers", type=POSITIVE, default=16, show_default=True, help="Connections.")
@click.option("--window", type=POSITIVE, default=256, show_default=True, help="Publishes outstanding on each connection.")
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
