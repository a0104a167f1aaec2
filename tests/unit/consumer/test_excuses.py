"""Which expired leases of a session that hangs count as no attempt. ADR 0265, 0272."""

from toymq_py.consumer.excuses import Excuses

A, B = "a", "b"


def test_one_that_hangs_for_several_leases_is_excused_for_lots_of_other_messages_and_comes_to_an_end() -> None:
    excuses = Excuses()
    assert excuses.counts(A, 1)
    assert excuses.counts(A, 1), "it hangs on this one"
    counts = [excuses.counts(B, number) for number in range(32)]
    assert "".join("x" if each else "." for each in counts) == "........x................x......"
    assert excuses.counts(B, 25), "it hangs on this one since then"


def test_a_lot_has_a_bound() -> None:
    excuses = Excuses()
    counts = [excuses.counts(A, number) for number in range(500)]
    lots = "".join("x" if each else "." for each in counts).split("x")
    assert [len(lot) for lot in lots[:8]] == [0, 4, 8, 16, 32, 64, 64, 64]
