"""A broker's URL: parsed, written again, and with the token that a command line finds."""

from pathlib import Path

import pytest

from toymq.url import Address, address_with_token, parse_url, parse_urls
from toymq_py.errors import (
    BadArgument,
    ConfigError,
)

URLS = [
    "toymq://127.0.0.1:6789", "toymqs://broker.example:1", "toymq://[::1]:6789", "toymq://a-token@host:1",
    "toymqs://%40%2F%3A@[::1]:2", "unix:/var/lib/queue/toymq.sock",
]  # fmt: skip


@pytest.mark.parametrize("url", URLS)
def test_an_address_is_written_as_it_was_read(url: str) -> None:
    assert parse_url(url).url == url


@pytest.mark.parametrize("url", URLS)
def test_the_text_of_an_address_has_no_token(url: str) -> None:
    address = parse_url(url)
    assert address.token is None or address.token not in f"{address} {address!r}"


def test_the_token_file_precedes_the_environment_and_both_the_url(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("from-file\n")
    found = [
        address_with_token("toymqs://from-url@host:1", token, token_file).token
        for token, token_file in ((None, None), ("given", None), ("given", str(path)), (None, str(path)))
    ]
    assert found == ["from-url", "given", "from-file", "from-file"]


def test_the_rest_of_the_address_stays() -> None:
    assert address_with_token("toymqs://[::1]:7", "given", None) == Address("::1", 7, "given", tls=True)
    assert address_with_token("unix:/a/b", "given", None).url == "unix:/a/b"


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "ümlaut"])
def test_a_token_is_one_word_and_what_is_none_is_named_by_where_it_stood(token: str, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(token)
    with pytest.raises(ConfigError, match="invalid token in TOYMQ_TOKEN: write one word of printable ASCII"):
        address_with_token("toymq://host", token, None)
    with pytest.raises(ConfigError, match=f"invalid token in {path}: write one word of printable ASCII"):
        address_with_token("toymq://host", None, str(path))


def test_a_token_beside_the_urls_is_that_of_all() -> None:
    """Found: ``connect`` had no argument ``token``, and a token with a slash or an @ must be quoted in a URL."""
    assert [address.token for address in parse_urls(["old@a", "toymq://b,c"], "n/w@")] == ["n/w@"] * 3
    assert parse_urls("unix:/q", "new")[0].token == "new"
    with pytest.raises(BadArgument, match=r"^invalid token: .*; if you read it from a file, strip\(\) the newline$"):
        parse_urls("a", "secret\n")
    with pytest.raises(TypeError, match=r"^token is a str or None, not a bytes$"):
        parse_urls("a", b"secret")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("urls", "kind"),
    [(5, "of type int"), (b"secret", "of type bytes"), ({"a": 1}, "of type dict"), ([5], "a list of something else")],
)
def test_what_is_no_url_is_named_by_its_type(urls: object, kind: str) -> None:
    """Found: the error was `not a int of something else`."""
    with pytest.raises(TypeError) as refused:
        parse_urls(urls)  # type: ignore[arg-type]
    assert str(refused.value) == f'urls is "toymq://host:port", or a list of such, not {kind}'


def test_several_urls_are_read() -> None:
    assert parse_urls(["a", "toymqs://b:1"]) == (Address("a", 6789), Address("b", 1, tls=True))
    with pytest.raises(ConfigError):
        parse_urls("toymq://user:password@host")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("toymq://127.0.0.1", Address("127.0.0.1", 6789)),
        ("toymq://host:1", Address("host", 1)),
        ("host:12", Address("host", 12)),
        ("toymq://t%40ken@host", Address("host", 6789, "t@ken")),
        ("toymq://[::1]:5", Address("::1", 5)),
        ("unix:/a b/%41.sock", Address("", 0, path="/a b/%41.sock")),
        ("unix:here.sock", Address("", 0, path="here.sock")),
    ],
)
def test_a_url_is_read(url: str, address: Address) -> None:
    assert parse_url(url) == address
    assert address.path is None or str(address) == url
    assert "ken" not in repr(address)


def test_one_of_several_urls_is_named_by_its_place() -> None:
    """The error for a single URL does not mention `urls`: a user of TOYMQ_URL does not know that argument."""
    with pytest.raises(ConfigError, match=r"^a broker's URL is .*, not x://$"):
        parse_urls("x://host")
    with pytest.raises(ConfigError, match=r"^urls\[1\]: a broker's URL is"):
        parse_urls(["host", "x://host"])


@pytest.mark.parametrize("url", ["", "http://x", "toymq://", "toymq://h:x", "toymq://h:70000", "toymq://h/path", "toymq://h?q=1"])
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="a broker's URL is"):
        parse_url(url)


def test_a_token_is_never_in_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url("ftp://s3cret@host")
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("url", ["unix:", "unix:a\0b"])
def test_an_invalid_url_of_a_unix_socket_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="unix:PATH"):
        parse_url(url)


@pytest.mark.parametrize(
    ("url", "end"),
    [
        ("amqp://guest:guest@host:5672/", ", not amqp://: that one is for AMQP clients"),
        ("AMQPS://secret@host", ", not amqps://: that one is for AMQP clients"),
        ("http://secret@host:7800", ", not http://"),
        ("toymq://secret@host/path", " for TLS"),
    ],
)
def test_a_url_of_another_protocol_is_named_by_its_scheme_alone(url: str, end: str) -> None:
    """Found by a trial: an App was given the URL of a broker's AMQP port."""
    with pytest.raises(ConfigError) as caught:
        parse_url(url)
    text = str(caught.value)
    assert text.endswith(end), text
    assert not any(word in text for word in ("secret", "guest", "host:5672", "/path"))
