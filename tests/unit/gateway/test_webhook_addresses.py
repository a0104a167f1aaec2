"""The addresses to which webhooks may push."""

import pytest

from toymq_py.config.webhooks import Target
from toymq_py.errors import BadArgument, Forbidden
from toymq_py.gateway import webhook_addresses
from toymq_py.gateway.name_lookups import look_up
from toymq_py.gateway.webhook_addresses import allowed_address, is_own, is_public


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.1.2.3", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
        "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1", "::1", "::", "fe80::1", "fe80::1%eth0",
        "fc00::1", "fec0::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::",
        "2001:db8::1", "192.0.0.192", "192.0.0.9", "168.63.129.16", "100.100.100.200", "192.88.99.1", "192.175.48.1",
        "203.0.113.9", "233.252.0.1", "fd00:ec2::254", "fd20:ce::254", "2001::1", "2001:2::1", "2001:20::1", "2001:0:4136::1",
        "3fff::1", "5f00::1", "100::1", "64:ff9b:1::1", "64:ff9b::a83f:8110", "::ffff:168.63.129.16", "2002:a83f:8110::",
        "::7f00:1", "::1.1.1.1", "4000::1", "2620:4f:8000::1",
    ],
)  # fmt: skip
def test_addresses_that_are_none_of_the_internet(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_addresses_of_the_internet(address: str) -> None:
    assert is_public(address)


def test_this_machines_addresses_are_its_own_wherever_they_come_from() -> None:
    """An address counts as this machine's also when it is embedded in an IPv6 address. Loopback stands for all: the kernel
    answers from the address itself."""
    assert [is_own(address) for address in ("127.0.0.1", "::ffff:127.0.0.1", "2002:7f00:1::")] == [True] * 3
    assert not is_own("192.0.2.1")


def test_a_public_address_of_this_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a trial: a webhook on a machine with a public address could push to the machine's own services."""
    monkeypatch.setattr(webhook_addresses, "is_public", lambda address: True)
    with pytest.raises(Forbidden, match="of this machine"):
        allowed_address(Target.parse("http://127.0.0.1/"), ["127.0.0.1"], private=False)


@pytest.mark.parametrize(
    "url",
    [
        "", "ftp://a/", "http://", "//a/", "http://user:word@a/", "http://a/#b",
        "http://a:x/", "http://a:0/", "http://[::1/", "http://a b/",
        "javascript:alert(1)", "http://a/" + "b" * 2048, "http://ä/",
    ],
    ids=lambda url: url[:20],
)  # fmt: skip
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(BadArgument):
        Target.parse(url)


def test_the_parts_of_a_url() -> None:
    assert Target.parse("https://a.example/b?c") == Target("https://a.example/b?c", "https", "a.example", 443)
    assert Target.parse("http://[2606:4700::1]:81/") == Target("http://[2606:4700::1]:81/", "http", "2606:4700::1", 81)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "2130706433", "0x7f.1", "[::1]", "0177.0.0.1"])
def test_this_machine_is_refused_however_it_is_written(host: str) -> None:
    target = Target.parse(f"http://{host}/")
    with pytest.raises((Forbidden, OSError)):
        allowed_address(target, look_up(target.host), private=False)
    if host in ("localhost", "127.0.0.1"):
        assert allowed_address(target, look_up(target.host), private=True) in ("127.0.0.1", "::1")


def test_one_address_that_is_not_public_is_enough() -> None:
    with pytest.raises(Forbidden, match=r"^a.example is 10.0.0.1, and is of this machine or its network"):
        allowed_address(Target.parse("http://a.example/"), ["1.1.1.1", "10.0.0.1"], private=False)


def test_an_address_is_named_once() -> None:
    """Found: the error was "127.0.0.1 is 127.0.0.1, of this machine or its network"."""
    with pytest.raises(Forbidden, match=r"^127\.0\.0\.1 is of this machine or its network \("):
        allowed_address(Target.parse("http://127.0.0.1/"), ["127.0.0.1"], private=False)
