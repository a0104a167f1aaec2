"""The fuzzer's targets in the default tests: hand-made inputs, and what Hypothesis makes of them."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fuzz.seeds import SEEDS
from tests.fuzz.targets import run

HAND_MADE = [(target, name) for target, inputs in SEEDS.items() for name in inputs]


@pytest.mark.parametrize(("target", "name"), HAND_MADE, ids=[f"{target}-{name}" for target, name in HAND_MADE])
def test_hand_made(target: str, name: str) -> None:
    run(target, SEEDS[target][name])


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
@settings(max_examples=300)
@example(data=b"")
def test_parser(data: bytes) -> None:
    run("parser", data)


@given(data=mutants("client"))
@settings(max_examples=300)
@example(data=b"")
def test_client(data: bytes) -> None:
    run("client", data)


@given(data=mutants("recovery"))
@settings(max_examples=300)
@example(data=b"")
def test_recovery(data: bytes) -> None:
    run("recovery", data)


@given(data=mutants("files"))
@settings(max_examples=200)
@example(data=b"")
def test_files(data: bytes) -> None:
    run("files", data)
