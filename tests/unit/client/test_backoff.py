"""Waits between attempts, and what a client is told when it is made."""

import ssl
from random import Random

import pytest

import toymq
from toymq.arguments import to_ms
from toymq.backoff import Backoff
from toymq.message import format_headers, parse_headers
from toymq.url import Address, parse_urls
from toymq_py.errors import BadArgument, ConfigError


class Highest(Random):
    def uniform(self, a: float, b: float) -> float:
        assert a == 0
        return b


def test_the_bound_doubles_up_to_its_maximum_and_begins_again() -> None:
    backoff = Backoff(0.05, 1.0, Highest())
    assert [backoff.next_s() for _ in range(7)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    backoff.reset()
    assert backoff.next_s() == 0.05


def test_waits_are_spread_over_all_of_it() -> None:
    backoff = Backoff(1.0, 1.0, Random(3))
    waits = [backoff.next_s() for _ in range(1000)]
    assert all(0 <= wait <= 1 for wait in waits)
    assert min(waits) < 0.01
    assert max(waits) > 0.99


@pytest.mark.parametrize(
    "options",
    [
        {"backoff_min_s": 0}, {"backoff_min_s": 2, "backoff_max_s": 1}, {"timeout_s": 0}, {"connect_timeout_s": -1},
        {"wait_s": -1}, {"timeout_s": float("nan")}, {"urls": []}, {"urls": "http://x"}, {"ssl": ssl.create_default_context()},
    ],
    ids=lambda options: ",".join(f"{name}={'one' if name == 'ssl' else value}" for name, value in options.items()),
)  # fmt: skip
def test_options_that_make_no_sense(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        toymq.connect(**options)  # type: ignore[arg-type]


def test_a_name_that_cannot_be_said() -> None:
    with pytest.raises(BadArgument):
        toymq.connect(name="two words")
    with pytest.raises(BadArgument) as caught:
        toymq.connect("toymq://s3cret%20token@host")
    assert "s3cret" not in str(caught.value)


def test_urls() -> None:
    assert parse_urls(["a", "toymqs://b:1"]) == (Address("a", 6789), Address("b", 1, tls=True))
    with pytest.raises(ConfigError):
        parse_urls("toymq://user:password@host")


@pytest.mark.parametrize(("seconds", "ms"), [(None, None), (0, 0), (1.5, 1500), (0.0004, 0)])
def test_seconds_become_milliseconds(seconds: float | None, ms: int | None) -> None:
    assert to_ms("delay", seconds) == ms


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 1e12])
def test_what_is_no_duration(seconds: float) -> None:
    with pytest.raises(BadArgument, match="delay is a duration"):
        to_ms("delay", seconds)


@pytest.mark.parametrize("headers", [{}, {"a": "b"}, {"a": "", "b": " c"}, {"x": "a:b\u2028c\rd"}, {"ü": "ö"}])
def test_headers_come_back_as_they_were(headers: dict[str, str]) -> None:
    assert parse_headers(format_headers(headers)) == headers


@pytest.mark.parametrize("headers", [{"": "x"}, {"a:b": "c"}, {"a\n": "b"}, {"a": "b\nc: d"}, {"a": "\ud800"}])
def test_headers_that_would_be_read_as_something_else(headers: dict[str, str]) -> None:
    with pytest.raises(BadArgument):
        format_headers(headers)
