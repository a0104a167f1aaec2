"""The broker that ``toymq definitions`` reads and changes. ``tests/e2e/test_definitions.py`` has a running one."""

import re
from pathlib import Path

import pytest

from toymq_py.cli.described_broker import GatewayClient, StoppedBroker, open_described
from toymq_py.config.definitions import Definitions, PutWebhook, parse
from toymq_py.config.webhooks import SIGNED, Webhook
from toymq_py.errors import ConfigError, DataDirectoryError

WANTED = """
[[topic]]
name = "orders"
visibility = "2m"

[[topic.consumer]]
name = "billing"

[[webhook]]
name = "hooks"
topic = "orders"
url = "https://example.com/orders"
"""


def test_a_stopped_broker_keeps_what_was_imported(tmp_path: Path) -> None:
    broker, wanted = StoppedBroker(str(tmp_path / "d")), parse(WANTED, "wanted.toml")
    broker.check(wanted)
    assert [change.verb for change in broker.apply(wanted)] == ["create-topic", "make-consumer", "put-webhook"]
    assert broker.apply(wanted) == []
    found: Definitions = broker.present()
    assert (found.topics["orders"].settings, [*found.webhooks]) == ({"visibility": "120000"}, ["hooks"])


def test_a_directory_that_is_missing_is_not_made(tmp_path: Path) -> None:
    missing = str(tmp_path / "d")
    with pytest.raises(DataDirectoryError, match=re.escape(missing)), open_described(missing, "", None, None):
        pytest.fail("it was opened")
    assert not Path(missing).exists()


def test_a_gateway_is_named_by_its_url() -> None:
    with pytest.raises(ConfigError, match=r"^invalid --http-url 'here': write http://host:port$"):
        GatewayClient("here", None)


def test_a_signed_webhook_is_not_put_without_its_secret() -> None:
    change = PutWebhook("hooks", Webhook("orders", "https://example.com/", SIGNED), None)
    with pytest.raises(ConfigError, match=r"^webhook hooks: it is signed: write its secret into the file"):
        GatewayClient("http://127.0.0.1:9", None).put(change)
