"""Names of objects, and what is derived from a listing."""

from toymq_py.tier.keys import Holding, Place, deleted_key, holdings, keys_of, seal_key, segment_key, state_key

ONE, OTHER = Place("orders.eu", "0123456789abcdef"), Place("orders.eu.dlq", "fedcba9876543210")


def test_a_listing_is_read_back() -> None:
    keys = [segment_key(ONE, 7), seal_key(ONE, 7), segment_key(ONE, 0), state_key(ONE, 5), deleted_key(OTHER)]
    found = holdings(keys)
    assert found == {ONE: Holding({0, 7}, {7}, {5}), OTHER: Holding(deleted=True)}
    assert [found[ONE].is_whole(first_id) for first_id in (0, 7, 9)] == [False, True, False]
    assert sorted(keys_of(ONE, found[ONE])) == sorted(keys[:4])


def test_objects_of_others_are_left_alone() -> None:
    segment = segment_key(ONE, 7)
    others = ["README", "orders/x", "-x/0123456789abcdef/deleted", segment + ".bak", segment.replace("7.log", ".log"),
              "orders/0123456789ABCDEF/deleted", "a/0123456789abcdef/b/deleted"]  # fmt: skip
    assert holdings(others) == {}
