"""Which producers of a connection were refused, and from which sequence they go on. Contract: protocol.md, OUT_OF_SEQUENCE."""

from toymq_py.errors import DiskFull, OutOfSequence
from toymq_py.session.refused_sequences import REFUSED_MAX, RefusedSequences
from toymq_py.topic import Commit


def test_who_goes_back_is_admitted_again() -> None:
    refused = RefusedSequences()
    refused.refuse("t", [b"p", b"p"], [5, 6])
    assert refused.admit("t", [b"q", b"p"], [9, 6], 0) == 1
    assert isinstance(refused.error("t", b"p"), OutOfSequence)
    refused.refuse("t", [b"p"], [9])
    assert refused.admit("t", [b"p"], [6], 0) == 0, "a later refusal does not move the first one"
    assert refused.admit("t", [b"p", b"p"], [5, 6], 0) == 2
    assert refused.admit("u", [b"p"], [6], 0) == 1


def test_a_commit_that_fails_refuses_the_lowest_it_held() -> None:
    refused, commit, other = RefusedSequences(), Commit(), Commit()
    refused.watch(commit, "t", [b"p", b"p"], [5, 6])
    refused.watch(commit, "t", [b"p"], [3])
    refused.watch(other, "t", [b"q"], [1])
    other.resolve(None)
    assert refused.admit("t", [b"p", b"q"], [7, 2], 0) == 2
    commit.resolve(DiskFull("full"))
    assert refused.admit("t", [b"p"], [4], 0) == 0
    assert refused.admit("t", [b"p"], [3], 0) == 1


def test_a_crowd_of_refused_producers_has_to_connect_anew() -> None:
    refused = RefusedSequences()
    names = [b"%d" % n for n in range(REFUSED_MAX + 1)]
    refused.refuse("t", names, [1] * len(names))
    assert refused.admit("t", [b"0", b"stranger"], [1, 1], 0) == 1
    assert isinstance(refused.error("t", b"stranger"), OutOfSequence)
