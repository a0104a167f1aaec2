"""The fuzzer's targets in the default tests: the hand-made inputs, the kept corpus, and what Hypothesis makes of them."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fuzz import corpus
from tests.fuzz.seeds import SEEDS
from tests.fuzz.targets import TARGETS, run
from tests.support.broker_process import ROOT, environment
from tests.support.logs import some_frames
from tests.support.shares import examples

HAND_MADE = [(target, name) for target, inputs in SEEDS.items() for name in inputs]
KEPT = [(target, path) for target in TARGETS for path in corpus.kept(target)]


@pytest.mark.parametrize(("target", "name"), HAND_MADE, ids=[f"{target}-{name}" for target, name in HAND_MADE])
def test_hand_made(target: str, name: str) -> None:
    run(target, SEEDS[target][name])


@pytest.mark.parametrize(("target", "path"), KEPT, ids=[f"{target}-{path.name[:8]}" for target, path in KEPT])
def test_kept(target: str, path: Path) -> None:
    run(target, path.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
def test_the_kept_corpus_is_there_and_small(target: str) -> None:
    sizes = [path.stat().st_size for path in corpus.kept(target)]
    assert 10 <= len(sizes) <= corpus.FILES_MAX
    assert max(sizes) <= corpus.FILE_BYTES_MAX


@st.composite
def mutants(draw: st.DrawFn, target: str) -> bytes:
    """A hand-made input with pieces of it cut out, repeated, or put in the place of others; or any bytes."""
    data = draw(st.sampled_from(sorted(SEEDS[target].values())))
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=300))
    for _ in range(draw(st.integers(0, 4))):
        first, last = sorted((draw(st.integers(0, len(data))), draw(st.integers(0, len(data)))))
        data = data[:first] + draw(st.one_of(st.binary(max_size=12), st.just(data[first:last] * 2))) + data[last:]
    return data


@given(data=mutants("parser"))
@settings(max_examples=examples(300))
@example(data=b"")
def test_parser(data: bytes) -> None:
    run("parser", data)


@given(data=mutants("client"))
@settings(max_examples=examples(300))
@example(data=b"")
def test_client(data: bytes) -> None:
    run("client", data)


@given(data=mutants("recovery"))
@settings(max_examples=examples(300))
@example(data=b"")
@example(data=b"\0\0\0" + some_frames(1, first_id=3)[0])  # verify said next id 0, recovery 1
def test_recovery(data: bytes) -> None:
    run("recovery", data)


@given(data=mutants("files"))
@settings(max_examples=examples(200))
@example(data=b"")
def test_files(data: bytes) -> None:
    run("files", data)


def test_without_atheris_the_fuzzer_says_so_in_one_line() -> None:
    program = "import sys; sys.modules['atheris'] = None; from tests.fuzz.__main__ import main; main(['parser'])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (0, 1, "")
    assert done.stdout.startswith("skipped: atheris")
