"""Options name a source (broker, directory or bucket), which is opened."""

import sys
from pathlib import Path

import pytest

from tests.unit.spark.test_options import source
from toymq_py.errors import ConfigError, DataDirectoryError
from toymq_spark.bucket_logs import BucketLogs, TieredLogs
from toymq_spark.options import SourceOptions
from toymq_spark.places import open_logs
from toymq_spark.record_sources import BrokerLogs, DirectoryLogs, Logs


def opened(options: SourceOptions) -> Logs:
    return open_logs(options.place, options.history)


def test_each_place_has_its_source(tmp_path: Path) -> None:
    (tmp_path / "topics").mkdir()
    url = f"file://{tmp_path}"
    assert type(opened(source())) is BrokerLogs
    assert type(opened(source(path=str(tmp_path)))) is DirectoryLogs
    assert type(opened(source(path=url))) is BucketLogs
    assert type(opened(source(tierUrl=url))) is TieredLogs
    assert type(opened(source(tierUrl=url, tier="broker"))) is BrokerLogs
    with pytest.raises(DataDirectoryError):
        opened(source(path=f"{tmp_path}/nowhere"))


def test_a_bucket_whose_library_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ConfigError, match=r"s3:// needs obstore: .*lake"):
        opened(source(path="s3://history/orders"))
