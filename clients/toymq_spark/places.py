"""Opens the source of records (broker, directory or bucket) that the options name."""

from toymq_py.tier.reader import open_reader
from toymq_spark.bucket_logs import BucketLogs, TieredLogs
from toymq_spark.options import BrokerAddress, Directory, History
from toymq_spark.record_sources import BrokerLogs, DirectoryLogs, Logs


def open_logs(place: BrokerAddress | Directory | History, history: History | None = None) -> Logs:
    """Open a source of records. A broker is connected to only at the first request.

    Args:
        history: the bucket of the broker's tier, if it is to be read.

    Raises: DataDirectoryError; ConfigError when the URL of a bucket needs an extra that is missing.
    """
    match place:
        case Directory(path):
            return DirectoryLogs(path)
        case History(url):
            return BucketLogs(url, open_reader(url))
        case BrokerAddress():
            broker = BrokerLogs(place)
            return broker if history is None else TieredLogs(broker, history.url, open_reader(history.url), alone=history.alone)
