"""The gateway paths that commands request; ``tests/unit/client/test_http_gateway.py`` tests which gateway is used."""

from urllib.parse import unquote, urlsplit

import pytest

from toymq_py.errors import BadName
from toymqctl.gateway import path_of


def test_a_name_is_one_part_of_a_path() -> None:
    assert path_of("webhooks", "crm") == "/v1/webhooks/crm"
    for name in ("a/b", "..", "../topics/orders", "a?b", "a#b", ""):
        with pytest.raises(BadName, match="webhook name must be"):
            path_of("webhooks", name)


@pytest.mark.parametrize("name", ["orders#3", "orders#3.dlq"])
def test_a_partition_is_one_part_of_a_path_too(name: str) -> None:
    path = path_of("topics", name)
    assert unquote(urlsplit(f"http://h{path}:discard").path) == f"/v1/topics/{name}:discard"
