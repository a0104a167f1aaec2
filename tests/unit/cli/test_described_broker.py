"""The broker that ``toymq definitions`` reads and changes. ``tests/e2e/test_definitions.py`` has a running one."""

import re
from pathlib import Path

import pytest

from toymq_py.cli.described_broker import GatewayClient, StoppedBroker, open_described
from toymq_py.config.definitions import Definitions, PutWebhook, parse
from toymq_py.config.webhooks import SIGNED, Webhook
from toymq_py.errors import ConfigError, DataDirectoryError
from toymq_py.partitions import Partitioned
from toymq_py.placement import worker_of
from toymq_py.storage import partitions_file
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.partitions_file import StoredPartitions
from toymq_py.storage.workers_file import divide

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


def test_the_part_of_a_worker_gets_nothing_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: an export created empty copies of the other workers' partitions in the worker's directory; the next start reported
    for each that it stays closed."""
    fs, part = RealFileSystem(), tmp_path / "workers/0"
    divide(fs, str(tmp_path), 2)
    topic = Partitioned("orders", 8, {})
    partitions_file.FILE.write(fs, str(part), partitions_file.encode({"orders": StoredPartitions(topic)}))
    ours = [name for name in topic.names if worker_of(name, 2) == 0]
    monkeypatch.chdir(part)
    for path in (str(part), "."):
        StoppedBroker(path).present()
        assert sorted(each.name for each in (part / "topics").iterdir()) == ours
    name = next(name for name in ("orders", "events", "bills", "mails") if worker_of(name, 2) == 1)
    wanted = parse(WANTED.replace("orders", name), "wanted.toml")
    with pytest.raises(ConfigError, match=rf"^topic {name}: {tmp_path}/workers/1 \(worker 1\) has the topic {name}"):
        StoppedBroker(str(part)).apply(wanted)
    assert sorted(each.name for each in (part / "topics").iterdir()) == ours


def test_a_gateway_is_named_by_its_url() -> None:
    with pytest.raises(ConfigError, match=r"^invalid --http-url 'here': write http://host:port$"):
        GatewayClient("here", None)


def test_a_signed_webhook_is_not_put_without_its_secret() -> None:
    change = PutWebhook("hooks", Webhook("orders", "https://example.com/", SIGNED), None)
    with pytest.raises(ConfigError, match=r"^webhook hooks: it is signed: write its secret into the file"):
        GatewayClient("http://127.0.0.1:9", None).put(change)
