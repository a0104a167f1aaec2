"""Host names under which a listener answers."""

import pytest

from toymq_py.errors import BadFraming, ConfigError
from toymq_py.net.host_names import HOST_CHARS_MAX, AllowedHosts, check_host_name, check_hosts, is_address_or_localhost, is_host


@pytest.mark.parametrize(
    ("host", "allowed"),
    [("localhost", True), ("localhost:7800", True), ("127.0.0.1:7800", True), ("[::1]:7800", True), ("[::1]", True),
     ("", False), ("queue.localhost:1", True), ("LocalHost:7800", True), ("localhost.", True), ("Queue.Localhost.:7800", True),
     ("127.0.0.1", True), ("192.0.2.1:7800", True), ("[2001:db8::1]:7800", True), ("toymq", False), ("a" * 300, False),
     (".", False), ("localhost..", False), ("evil.example", False), ("evil.example.", False), (":7800", False),
     ("localhost.evil.example:7800", False), ("127.0.0.1.evil.example", False)],
)  # fmt: skip
def test_addresses_and_localhost_are_allowed_and_no_name(host: str, allowed: bool) -> None:
    assert AllowedHosts().allow(host) is allowed


def test_what_is_too_long_for_a_host_is_not_kept() -> None:
    """Results are cached by host name, which a client chooses."""
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


def test_a_request_without_a_host_is_allowed() -> None:
    assert AllowedHosts().allow(None), "HTTP/1.0, which no browser speaks"


@pytest.mark.parametrize(
    "host", ["a", "a_b.example.", "A-1.example:0", "192.0.2.1:65535", "[::1]", "[2001:DB8::192.0.2.1]:7800", "x.localhost:80"]
)
def test_a_name_or_an_address_with_a_port_is_a_host(host: str) -> None:
    assert is_host(host)
    assert check_hosts("1.1", [host]) == check_hosts("1.0", [host]) == host


@pytest.mark.parametrize(
    "host",
    ["", ":80", "localhost:", "localhost:evil", "localhost:80:80", "127.0.0.1:80@evil.example", "me@localhost",
     "localhost:65536", "localhost:000080", "localhost:\u0661", "localhost\n", "localhost/", "a b", "a,b", "*", "a..b", ".a",
     ".", "localhost..", "::1", "[", "[]", "[1]", "[localhost]", "[::1", "[::1]x", "[::1%25lo]", "[127.0.0.1]",
     "%6cocalhost", "\xe4", "a" * 300],
)  # fmt: skip
def test_what_is_no_host(host: str) -> None:
    assert not is_host(host)
    assert not AllowedHosts([]).allow(host)
    for version in ("1.0", "1.1"):
        with pytest.raises(BadFraming, match="invalid Host: send one Host header"):
            check_hosts(version, [host])


def test_how_many_hosts_a_request_has() -> None:
    assert check_hosts("1.0", []) is None
    for version, hosts in (("1.1", []), ("1.1", ["a", "a"]), ("1.0", ["a", "a"])):
        with pytest.raises(BadFraming):
            check_hosts(version, hosts)


def test_the_names_of_the_certificate_are_allowed() -> None:
    certified = {"queue.example", "*.wild.example"}
    hosts = AllowedHosts(["toymq"], lambda: certified)
    asked = ("queue.example", "Queue.Example.:443", "one.wild.example", "two.one.wild.example", "wild.example", "toymq", "evil")
    assert [hosts.allow(host) for host in asked] == [True, True, True, False, False, True, False]
    certified.clear()  # another file is read
    assert not hosts.allow("queue.example")
