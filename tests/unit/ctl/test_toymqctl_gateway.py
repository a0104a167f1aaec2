"""Paths of the gateway that a command asks; ``tests/unit/client/test_http_gateway.py`` has which gateway that is."""

import pytest

from toymq_py.errors import BadName
from toymqctl.gateway import path_of


def test_a_name_is_one_part_of_a_path() -> None:
    assert path_of("webhooks", "crm") == "/v1/webhooks/crm"
    for name in ("a/b", "..", "../topics/orders", "a?b", "a#b", ""):
        with pytest.raises(BadName, match="webhook name must be"):
            path_of("webhooks", name)
