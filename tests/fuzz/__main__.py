"""Fuzzing by coverage, with atheris: ``python -m tests.fuzz TARGET --seconds 60``; ``make fuzz`` is the short form.

Begins with the kept corpus and the hand-made seeds. What it learns is in build/fuzz/TARGET, and a later run goes on from it;
``--keep`` puts the smallest set of it with the same coverage into the kept corpus. An input that breaks a promise ends the
run; it is written to build/fuzz and belongs, with its fix, into the hand-made ones.
"""

import sys
import tempfile
from pathlib import Path

import click

from tests.fuzz import corpus
from tests.support.broker_process import ROOT

WORDS = """
PUB SUB ACK NACK HELLO FETCH TOUCH CONFIG CREATE SEEK OFFSETS TOPICS hdr= delay= ttl= seq= window= visibility= start= mode=
reason= error_type= error= traceback= %0A nack_error=1
wait= max_bytes= sync=1 earliest latest shared OK DUP MSG ERR JSON BATCH CLOSED PONG
first_id next_id consumers removed
has_acked last_acked acked_above attempts since_ns producers gaps index size keyed version 1e999 NaN null
"""
TARGETS = ("client", "files", "parser", "recovery")  # named here as well: what is imported before atheris is not looked into


@click.command()
@click.argument("target", type=click.Choice(TARGETS))
@click.option("--seconds", type=click.IntRange(1), default=60, show_default=True)
@click.option("--keep", is_flag=True, help="Instead of fuzzing: make the kept corpus anew from what was learnt.")
def main(target: str, seconds: int, keep: bool) -> None:
    """Fuzz one target for so long."""
    learnt = ROOT / "build" / "fuzz" / target
    learnt.mkdir(parents=True, exist_ok=True)
    kept = corpus.CORPUS / target
    if keep:
        _keep(target, learnt)
        return
    try:
        import atheris
    except ImportError:
        click.echo(f"skipped: atheris cannot be had for {sys.implementation.name} {sys.version.split()[0]} on this machine")
        return
    with atheris.instrument_imports(include=["toymq_py"]):
        from tests.fuzz import seeds, targets
    assert set(targets.TARGETS) == set(TARGETS)
    with tempfile.TemporaryDirectory() as made:
        for name, data in seeds.SEEDS[target].items():
            (Path(made) / name).write_bytes(data)
        words = Path(made) / "words.dict"
        words.write_text("".join(f'"{word}"\n' for word in WORDS.split()))
        options = {
            "max_len": targets.INPUT_BYTES_MAX, "max_total_time": seconds, "timeout": 20, "dict": words,
            "artifact_prefix": f"{learnt.parent}/{target}-", "print_final_stats": 1,
        }  # fmt: skip
        flags = [f"-{name}={value}" for name, value in options.items()]
        atheris.Setup([sys.argv[0], *flags, str(learnt), str(kept), made], lambda data: targets.run(target, data))
        atheris.Fuzz()


def _keep(target: str, learnt: Path) -> None:
    from tests.fuzz import seeds, targets

    def call(data: bytes) -> None:
        targets.run(target, data)

    inputs = [path.read_bytes() for path in [*corpus.kept(target), *learnt.iterdir()]]
    known = set().union(*(corpus.reached(call, data) for data in seeds.SEEDS[target].values()))
    chosen = corpus.smallest(call, [data for data in inputs if len(data) <= corpus.FILE_BYTES_MAX], known)
    corpus.keep(target, chosen)
    click.echo(f"{target}: {len(chosen)} inputs of {len(inputs)} are kept beside the {len(seeds.SEEDS[target])} hand-made ones")


if __name__ == "__main__":
    main()
