"""The state of a consumer that survives a restart, validated. Contract: storage.md, "offsets.json"."""

import pytest

from toymq_py.consumer import ConsumerSnapshot
from toymq_py.errors import DamagedData

U64 = 2**64 - 1
GOOD = {
    "since_ns": 1,
    "start": 2,
    "has_acked": True,
    "last_acked": 9,
    "acked_above": [[12, 14]],
    "attempts": [[10, 11, 1]],
}


@pytest.mark.parametrize(
    "damage",
    [
        {"since_ns": -1},
        {"since_ns": "1"},
        {"since_ns": 1.0},
        {"start": U64 + 1},
        {"start": True},
        {"start": None},
        {"start": 11},  # above the floor
        {"has_acked": 1},
        {"has_acked": None},
        {"last_acked": False},
        {"last_acked": 12},  # inside acked_above
        {"acked_above": None},
        {"acked_above": {}},
        {"acked_above": [12]},
        {"acked_above": [[12]]},
        {"acked_above": [[12, 13, 14]]},
        {"acked_above": [["12", 14]]},
        {"acked_above": [[14, 12]]},
        {"acked_above": [[12, 14], [14, 15]]},
        {"acked_above": [[16, 17], [12, 14]]},
        {"acked_above": [[9, 9]]},
        {"acked_above": [[12, U64 + 1]]},
        {"attempts": [[10, 11]]},
        {"attempts": [[10, 11, 0]]},
        {"attempts": [[10, 11, 1.0]]},
        {"attempts": [[10, 12, 1]]},  # 12 is acked
        {"attempts": [[9, 9, 1]]},
        {"attempts": [[11, 11, 1], [10, 10, 1]]},
        {"attempts": [[10, 11, 1], [11, 11, 2]]},
        {"surprise": 1},
    ],
)
def test_damaged_state_is_refused(damage: dict[str, object]) -> None:
    assert ConsumerSnapshot.from_json(GOOD).to_json() == GOOD
    with pytest.raises(DamagedData):
        ConsumerSnapshot.from_json({**GOOD, **damage})


@pytest.mark.parametrize("value", [None, [], "x", {}])
def test_another_value_than_an_object_of_the_fields_is_refused(value: object) -> None:
    with pytest.raises(DamagedData):
        ConsumerSnapshot.from_json(value)


@pytest.mark.parametrize("field", sorted(GOOD))
def test_a_missing_field_is_refused(field: str) -> None:
    with pytest.raises(DamagedData):
        ConsumerSnapshot.from_json({k: v for k, v in GOOD.items() if k != field})
