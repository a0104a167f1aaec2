"""How ``toymqctl connections`` describes a subscription."""

import pytest

from toymqctl.connections import _subscription


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, ""),  # an older broker
        ({"active_in": None}, ""),
        ({"active_in": []}, " (not active)"),
        ({"active_in": ["t#0", "t#2"]}, " (active in t#0 t#2)"),
    ],
)
def test_a_subscription_says_where_it_is_active(more: dict[str, object], told: str) -> None:
    assert _subscription({"topic": "t", "consumer": "c", **more}) == f"t as c{told}"
