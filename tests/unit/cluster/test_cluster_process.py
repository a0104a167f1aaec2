"""What the process of a node says of itself; ``tests/e2e/test_cluster.py`` runs it."""

import pytest

from toymq_py.cluster.process import over_tls


@pytest.mark.parametrize(
    ("advertised", "listen", "tls", "found"),
    [
        ("h:1", "h:1", "", ""), ("h:1", "h:1", "h:2", "h:2"), ("h:2", "127.0.0.1:1", "h:2", "h:2"),
        ("proxy:443", "127.0.0.1:1", "", "proxy:443"), ("proxy:443", "h:1", "h:2", "proxy:443"),
        ("name:1", "0.0.0.0:1", "h:2", "h:2"),
    ],
)  # fmt: skip
def test_clients_are_told_an_address_of_tls_only_where_it_may_be_spoken(
    advertised: str, listen: str, tls: str, found: str
) -> None:  # fmt: skip
    assert over_tls(advertised, listen, tls) == found
