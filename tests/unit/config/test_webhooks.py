"""Definitions of webhooks."""

import re

import pytest

from toymq_py.config.webhooks import Webhook
from toymq_py.errors import BadArgument, BadName


@pytest.mark.parametrize(
    "body",
    [{}, {"topic": "t"}, {"url": "http://a/"}, {"topic": ".t", "url": "http://a/"}, {"topic": "t", "url": "ftp://a/"},
     {"topic": "t", "url": "http://a/", "secret": "whsec_?"}, {"topic": "t", "url": "http://a/", "secret": ""},
     {"topic": "t", "url": "http://a/", "secret": "\ud800"}, {"topic": "t", "url": "http://a/", "secret": "whsec_" + "A" * 600},
     {"topic": "t", "url": "http://a/", "timeout_ms": 0}, {"topic": "t", "url": "http://a/", "concurrency": 65},
     {"topic": "t", "url": "http://a/", "concurrency": True}, {"topic": "t", "url": "http://a/", "colour": "red"}],
    ids=str,
)  # fmt: skip
def test_definitions_that_make_no_sense(body: dict[str, object]) -> None:
    with pytest.raises((BadArgument, BadName)):
        Webhook.from_json(body)


@pytest.mark.parametrize(
    ("body", "says"),
    [({"timeout_ms": 0}, "invalid timeout_ms '0': write a whole number from 1 to 60000"),
     ({"concurrency": 65}, "invalid concurrency '65': write a whole number from 1 to 64"),
     ({"concurrency": 16**5000}, f"invalid concurrency '0x1{'0' * 47}': write a whole number from 1 to 64"),
     ({"url": "http://a:b/"}, "invalid URL 'http://a:b/': write http://host/path or https://host/path")],
    ids=["timeout", "concurrency", "hexadecimal in TOML", "url"],
)  # fmt: skip
def test_an_error_names_the_value_and_what_to_write(body: dict[str, object], says: str) -> None:
    with pytest.raises(BadArgument, match=f"^{re.escape(says)}$"):
        Webhook.from_json({"topic": "t", "url": "http://a/", **body})


def test_a_short_secret_is_refused_when_it_is_new() -> None:
    stored = Webhook.from_json({"topic": "t", "url": "http://a/", "secret": "whsec_"})
    with pytest.raises(BadArgument, match="the secret has 0 bytes behind whsec_ and needs 16: write the output of"):
        stored.check_secret()
    for secret in ("whsec_MDEyMzQ1Njc4OWFiY2RlZg==", "s", None):
        Webhook("t", "http://a/", secret).check_secret()
