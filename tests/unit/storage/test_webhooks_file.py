"""``webhooks.json``: every reader accepts the same file."""

import random

import pytest

from tests.support.sim_disk import SimDisk
from toymq_py.config.webhooks import NAME_MAX, WEBHOOKS_MAX, Webhook
from toymq_py.errors import BadArgument, DamagedData
from toymq_py.storage import checked_json, webhooks_file

HOOK = Webhook("orders", "https://example.com/", secret="s", concurrency=2)


def test_what_was_written_is_loaded() -> None:
    disk = SimDisk(random.Random(1))
    assert webhooks_file.load(disk, "/data") == {}
    webhooks_file.FILE.write(disk, "/data", webhooks_file.encode({"one": HOOK}))
    assert webhooks_file.load(disk, "/data") == {"one": HOOK}


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        ("x" * (NAME_MAX + 1), {"topic": "a", "url": "https://example.com/"}, f"at most {NAME_MAX}"),
        ("one", ["a"], "webhook 'one'"),
        ("one", {"topic": "a"}, "webhook 'one'"),
        ("one", {"topic": "a", "url": "https://example.com/", "color": 1}, "color"),
        ("one", {"topic": "a", "url": "https://example.com/", "concurrency": 0}, "concurrency"),
        ("a b", {"topic": "a", "url": "https://example.com/"}, "a b"),
    ],
)
def test_a_webhook_that_a_request_could_not_define_is_damage(name: str, fields: object, says: str) -> None:
    """Found: with a valid checksum the gateway accepted names that definitions refuse."""
    with pytest.raises(DamagedData, match=says):
        webhooks_file.decode(checked_json.encode("webhooks", {name: fields}))


def test_more_than_the_limit_are_not_written() -> None:
    hooks = {f"h{number}": HOOK for number in range(WEBHOOKS_MAX)}
    assert webhooks_file.decode(webhooks_file.encode(hooks)) == hooks
    with pytest.raises(BadArgument, match=f"limit of {WEBHOOKS_MAX}"):
        webhooks_file.encode({**hooks, "more": HOOK})
