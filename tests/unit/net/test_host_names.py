"""Names under which a listener answers."""

import pytest

from toymq_py.errors import ConfigError
from toymq_py.net.host_names import HOST_CHARS_MAX, AllowedHosts, check_host_name, is_address_or_localhost


@pytest.mark.parametrize(
    ("host", "allowed"),
    [("localhost", True), ("localhost:7800", True), ("127.0.0.1:7800", True), ("[::1]:7800", True), ("[::1]", True), ("", True),
     ("queue.localhost:1", True), ("LocalHost:7800", True), ("localhost.", True), ("Queue.Localhost.:7800", True),
     ("127.0.0.1", True), ("192.0.2.1:7800", True), ("[2001:db8::1]:7800", True), ("toymq", False), ("a" * 300, False),
     (".", False), ("localhost..", False), ("evil.example", False), ("evil.example.", False), (":7800", False),
     ("localhost.evil.example:7800", False), ("127.0.0.1.evil.example", False)],
)  # fmt: skip
def test_addresses_and_localhost_are_allowed_and_no_name(host: str, allowed: bool) -> None:
    assert AllowedHosts().allow(host) is allowed


def test_what_is_too_long_for_a_host_is_not_kept() -> None:
    """Answers are kept by what was said, which a client chooses."""
    kept = is_address_or_localhost.cache_info()
    assert not AllowedHosts().allow("a" * 60_000)
    assert not AllowedHosts(["a"]).allow("a" * (HOST_CHARS_MAX + 1))
    assert is_address_or_localhost.cache_info() == kept


def test_names_that_are_given_are_allowed_and_no_others() -> None:
    hosts = AllowedHosts(["ToyMQ", "queue.example"])
    assert all(map(hosts.allow, ["toymq", "toymq:9464", "TOYMQ", "queue.example.", "Queue.Example:1", "localhost"]))
    assert not any(map(hosts.allow, ["toymq.evil.example", "example", "xtoymq", "evil.queue.example", "toymq.."]))


@pytest.mark.parametrize("name", ["", "a:1", "a b", "*.example", "a..b", ".a", "ä", "a/", "a" * 300, "a\n"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ConfigError, match="invalid host name"):
        check_host_name(name)


def test_an_address_with_a_zone_is_refused() -> None:
    assert AllowedHosts().allow("[::1]:80")
    assert not AllowedHosts().allow("[::1%25evil.example]:80")
