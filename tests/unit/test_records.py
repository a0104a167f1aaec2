"""Runs of records."""

from toymq_py.records import Records, shape_of


def test_a_run_knows_its_size() -> None:
    run = Records([5, 6], [1, 2], [b"", b"k"], [b"abc", b"d"], [b"", b"A: b\n"])
    assert len(run) == 2
    assert run.payload_bytes == 4 + 5


def test_the_shape_of_a_run_is_that_of_every_message() -> None:
    assert shape_of([b"ab", b"cd"], [b"x", b"y"]) == (2, 1)
    assert shape_of([b"ab", b"c"], [b"x", b"y"]) is None
    assert shape_of([b"ab", b"cd"], [b"x", b"yz"]) is None
    assert shape_of([], []) is None
