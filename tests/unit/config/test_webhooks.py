"""Definitions of webhooks."""

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
