"""Kinds of option values: which texts they parse, print and refuse. Contract: clients.md, "Command lines"."""

from contextlib import nullcontext

import pytest

from toymq_py.config.option_schema import (
    Several,
    Text,
    check_apart,
    did_you_mean,
    is_public,
    parse_address,
    parse_endpoint,
    shown_key,
)
from toymq_py.errors import ConfigError


def test_an_option_with_several_values() -> None:
    kind = Several(Text("an address such as 127.0.0.1:6789", "HOST:PORT", parse_address))
    assert kind.parse("a:1 b:2") == kind.from_toml(["a:1", "b:2"]) == ("a:1", "b:2")
    assert kind.show(("a:1", "b:2")) == "a:1 b:2"
    for wrong in ("a:1", [1], ["a"]):
        with pytest.raises(ConfigError):
            kind.from_toml(wrong)


@pytest.mark.parametrize(
    ("text", "address"), [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:65535", ("::1", 65535)), ("host:6789", ("host", 6789))]
)
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "6789", ":6789", "host:", "host:65536", "host:-1", "host:٣"])
def test_an_invalid_address_is_named_with_a_remedy(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write host:port"):
        parse_address(text)


def test_an_endpoint_is_an_http_url_without_credentials() -> None:
    assert parse_endpoint("https://[::1]:4318/v1") == "https://[::1]:4318/v1"
    for wrong in (
        "localhost:4318",
        "ftp://a:1",
        "http://",
        "http://a:0",
        "http://a:99999",
        "http://u:p@a:1",
        "http://a b",
        "http://ä",
    ):
        with pytest.raises(ConfigError, match="write http://host:port"):
            parse_endpoint(wrong)


def test_only_an_ip_address_outside_of_the_loopback_is_public() -> None:
    assert [is_public(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "10.1.2.3")] == [
        False, False, False, True, True, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        ("127.0.0.1:1", "127.0.0.1:1", True), ("127.0.0.1:1", "127.0.0.1:2", False), ("127.0.0.1:0", "127.0.0.1:0", False),
        ("0.0.0.0:1", "127.0.0.1:1", True), ("127.0.0.1:1", "0.0.0.0:1", True), ("127.0.0.1:1", "127.0.0.2:1", False),
        ("[::]:1", "[::1]:1", True), ("[::1]:1", "[0:0::1]:1", True), ("[::]:1", "0.0.0.0:1", False),
        ("localhost:1", "LocalHost:1", True), ("localhost:1", "127.0.0.1:1", False),
    ],
)  # fmt: skip
def test_two_listeners_with_the_same_connections_are_refused(one: str, other: str, clash: bool) -> None:
    """The broker's IPv6 sockets take no IPv4 connections. A host name is resolved only when it is bound."""
    listeners = [("--listen", parse_address(one)), ("--http", parse_address(other))]
    with pytest.raises(ConfigError, match="--http is the address of --listen: ") if clash else nullcontext():
        check_apart(listeners)


def test_an_unknown_key_is_compared_with_known_ones_and_shown_bounded() -> None:
    assert did_you_mean("max-payloads", ["max_payload", "fsync"]) == "; did you mean max_payload?"
    assert did_you_mean("colour", ["max_payload", "fsync"]) == ""
    assert shown_key("colour") == "colour"
    assert len(shown_key("k" * 1000)) < 100
    assert shown_key("a\nb") == r"'a\nb'"
