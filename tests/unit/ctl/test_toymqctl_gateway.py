"""Which gateway of a broker a command asks."""

import pytest

from toymq.url import parse_url
from toymq_py.errors import BadName, ConfigError
from toymqctl.gateway import choose, path_of


@pytest.mark.parametrize(
    ("gateways", "url", "chosen"),
    [
        (["http://127.0.0.1:8080/"], "toymq://127.0.0.1", "http://127.0.0.1:8080/"),
        (["http://0.0.0.0:8080/"], "toymq://mq.example.com", "http://mq.example.com:8080/"),
        (["http://[::]:8080/"], "toymq://[fd00::1]", "http://[fd00::1]:8080/"),
        (["https://0.0.0.0:8443/", "http://0.0.0.0:8080/"], "toymqs://mq.example.com", "https://mq.example.com:8443/"),
        (["http://127.0.0.1:8080/"], "toymqs://localhost", "http://127.0.0.1:8080/"),
        (["http://127.0.0.1:8080/"], "unix:/tmp/s", "http://127.0.0.1:8080/"),
    ],
)
def test_it_is_reached_where_the_broker_is(gateways: list[str], url: str, chosen: str) -> None:
    assert choose(gateways, parse_url(url)) == chosen


@pytest.mark.parametrize(
    ("gateways", "url", "says"),
    [
        ([], "toymq://a", "this broker has no gateway: start it with --http 127.0.0.1:7800"),
        (None, "toymq://a", "does not tell where its gateway listens: name it with --http-url"),
        (["http://0.0.0.0:8080/"], "toymqs://mq.example.com", "has no TLS: start it with --https, or name"),
    ],
)
def test_without_one_the_remedy_is_said(gateways: list[str] | None, url: str, says: str) -> None:
    """A token that crossed the network by TLS does not cross it in the clear."""
    with pytest.raises(ConfigError, match=says):
        choose(gateways, parse_url(url))


def test_a_name_is_one_part_of_a_path() -> None:
    assert path_of("webhooks", "crm") == "/v1/webhooks/crm"
    for name in ("a/b", "..", "../topics/orders", "a?b", "a#b", ""):
        with pytest.raises(BadName, match="webhook name must be"):
            path_of("webhooks", name)
