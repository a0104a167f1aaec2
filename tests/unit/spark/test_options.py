"""Every option is accepted, or refused by its name."""

import pytest

from toymq_spark.errors import OptionError
from toymq_spark.options import (
    EARLIEST,
    LATEST,
    BrokerAddress,
    Certificates,
    Directory,
    Edge,
    History,
    Mode,
    SourceOptions,
    Topics,
    ValueOptions,
    parse_sink,
    parse_source,
)

PLACE = {"url": "toymq://h:1", "subscribe": "t"}


def source(mode: Mode | None = "batch", **options: str) -> SourceOptions:
    """Return options with a default place and topic; ``__`` in a name stands for a dot."""
    named = {name.replace("__", "."): value for name, value in options.items()}
    for name, others in (("url", {"path", "toymq.bootstrap.servers"}), ("subscribe", {"subscribePattern", "assign"})):
        if not others & set(named):
            named = {name: PLACE[name]} | named
    return parse_source({name.lower(): value for name, value in named.items()}, mode)


def refusal(mode: Mode | None = "batch", **options: str) -> str:
    with pytest.raises(OptionError) as error:
        source(mode, **options)
    return str(error.value)


def test_what_holds_when_nothing_is_said() -> None:
    batch, stream = source("batch"), source("stream")
    assert (batch.start, batch.end) == (Edge("id", EARLIEST), Edge("id", LATEST))
    assert stream.start == Edge("id", LATEST), "as with Kafka, a stream begins at the end"
    assert batch.place == BrokerAddress("toymq://h:1", 3, 1000)
    assert batch.fail_on_data_loss
    assert not batch.include_headers
    assert (batch.min_partitions, batch.max_records_per_partition) == (None, 250_000)


def test_places() -> None:
    assert source(toymq__bootstrap__servers="h:7").place == BrokerAddress("toymq://h:7")
    assert source(path="/d").place == Directory("/d")
    assert source(toymq__token="s3").place == BrokerAddress("toymq://s3@h:1")
    secret = source(url="toymqs://h:1", toymq__token="a/b@c").place
    assert secret == BrokerAddress("toymqs://a%2Fb%40c@h:1")
    assert source(toymq__token__file="/t").place == BrokerAddress("toymq://h:1", token_file="/t")
    encrypted = source(toymq__bootstrap__servers="h:7", toymq__tls="true", toymq__tls__ca="/ca").place
    assert encrypted == BrokerAddress("toymqs://h:7", certificates=Certificates("/ca"))
    shown = source(url="toymqs://h", toymq__tls__cert="/c", toymq__tls__key="/k").place
    assert shown == BrokerAddress("toymqs://h", certificates=Certificates(None, "/c", "/k"))
    assert source(path="s3://b/p").place == History("s3://b/p", alone=True)
    assert source(path="file:///mnt/b").place == History("file:///mnt/b", alone=True)
    assert source().history is None
    assert source(tierUrl="gs://b/p").history == History("gs://b/p", alone=False)
    assert source(tierUrl="gs://b/p", tier="bucket").history == History("gs://b/p", alone=True)
    assert source(tierUrl="gs://b/p", tier="broker").history is None
    assert source(tier="broker").history is None
    assert not source().cuts_segments
    assert source(minPartitions="2").cuts_segments
    retrying = source(fetchOffset__numRetries="0", fetchOffset__retryIntervalMs="5")
    assert retrying.place == BrokerAddress("toymq://h:1", 0, 5)


def test_topics() -> None:
    assert source(subscribe="b, a,b").topics == Topics(("a", "b"))
    assert source(assign='{"b": [0], "a": [0]}').topics == Topics(("a", "b"), exact=True)
    chosen = source(subscribePattern="or.*").topics
    assert chosen.select(lambda: ["orders", "xorders", "oracle"]) == ["oracle", "orders"], "the whole name has to match"


def test_where_to_begin_and_end() -> None:
    assert source(startingOffsets='{"t": {"0": 7}}').start == Edge("id", by_topic={"t": 7})
    assert source("stream", startingOffsets="Earliest").start == Edge("id", EARLIEST)
    assert source(endingOffsets='{"t": {"0": -1}}').end == Edge("id", by_topic={"t": LATEST})
    at_time = source(startingTimestamp="5", startingOffsets="earliest", endingOffsetsByTimestamp='{"t": {"0": 9}}')
    assert at_time.start == Edge("time", 5), "a time goes before offsets, as with Kafka"
    assert at_time.end == Edge("time", by_topic={"t": 9})
    assert at_time.late_start_is_error
    assert not source(startingTimestamp="5", startingOffsetsByTimestampStrategy="latest").late_start_is_error


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kafka__bootstrap__servers": "h:1"}, "is of Kafka's client: write toymq.bootstrap.servers"),
        ({"startingOfsets": "earliest"}, "unknown option startingofsets"),
        ({"url": "http://h"}, "option url: a broker's URL is toymq://"),
        ({"toymq__bootstrap__servers": "a:1,b:2"}, "option toymq.bootstrap.servers: invalid value"),
        ({"path": ""}, "option path: is empty"),
        ({"path": "/d", "toymq__token": "x"}, "option toymq.token: has no effect here"),
        ({"path": "/d", "url": "toymq://h"}, "exactly one of the options url, toymq.bootstrap.servers, path"),
        ({"url": "toymq://a@h", "toymq__token": "x"}, "option toymq.token: the URL has a token"),
        ({"url": "toymq://a@h", "toymq__token__file": "/x"}, "option toymq.token.file: the URL has a token"),
        ({"toymq__token": "x", "toymq__token__file": "/x"}, "option toymq.token.file: toymq.token is set"),
        ({"path": "/d", "toymq__tls__ca": "/ca"}, "option toymq.tls.ca: has no effect here"),
        ({"url": "unix:/s", "toymq__token": "x"}, "option toymq.token: has no effect with a Unix socket"),
        ({"url": "toymqs://h", "toymq__tls": "true"}, "option toymq.tls: leave it out"),
        ({"toymq__bootstrap__servers": "h:1", "toymq__tls": "yes"}, "option toymq.tls: invalid value 'yes': write true"),
        ({"toymq__tls__ca": "/ca"}, "option toymq.tls.ca: needs TLS"),
        ({"url": "toymqs://h", "toymq__tls__key": "/k"}, "option toymq.tls.key: needs toymq.tls.cert"),
        ({"subscribe": "t", "subscribePattern": "x"}, "exactly one of the options subscribe"),
        ({"subscribe": ".."}, "option subscribe: topic name must be"),
        ({"subscribe": "a,,b"}, "option subscribe: topic name must be"),
        ({"subscribePattern": "("}, "option subscribePattern: invalid regular expression"),
        ({"assign": '{"t": ["x"]}'}, "option assign: partitions are a list of numbers"),
        ({"assign": "t"}, "option assign: invalid value 't': write a JSON object"),
        ({"assign": "[" * 100_000}, "write a JSON object"),
        ({"startingOffsets": "latest"}, "option startingOffsets: a batch that starts at the latest"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "option startingOffsets: a batch that starts at the latest"),
        ({"startingOffsets": '{"t": {"x": 0}}'}, "option startingOffsets: partitions are numbers"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "option startingOffsets: topic t: invalid number -3"),
        ({"startingOffsets": '{"t": {"0": true}}'}, "option startingOffsets: topic t: invalid number True"),
        ({"endingOffsets": "earliest"}, "option endingOffsets: a batch that ends at the earliest"),
        ({"endingOffsets": '{"t": {"0": -2}}'}, "option endingOffsets: topic t: invalid number -2"),
        ({"startingTimestamp": "yesterday"}, "option startingTimestamp: invalid number 'yesterday': write a whole number"),
        ({"startingOffsetsByTimestampStrategy": "latest"}, "option startingOffsetsByTimestampStrategy: needs"),
        ({"minPartitions": "0"}, "option minPartitions: invalid number '0': write a whole number of at least 1"),
        ({"maxRecordsPerPartition": "-1"}, "option maxRecordsPerPartition"),
        ({"kafka__group__id": "x"}, "option kafka.group.id is of Kafka's client: leave it out"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss: invalid value 'maybe': write true or false"),
        ({"fetchOffset__numRetries": "x"}, "option fetchOffset.numRetries"),
        ({"maxOffsetsPerTrigger": "5"}, "option maxOffsetsPerTrigger: has no effect here: a batch has no triggers"),
        ({"minOffsetsPerTrigger": "5"}, "option minOffsetsPerTrigger: has no effect here"),
        ({"maxTriggerDelay": "5s"}, "option maxTriggerDelay: has no effect here"),
        ({"checkpointLocation": "/c"}, "unknown option checkpointlocation"),
        ({"valueFormat": "xml", "valueSchema": "a INT"}, "option valueFormat: invalid value 'xml': write json"),
        ({"valueFormat": "json"}, "option valueSchema: is missing: valueFormat=json needs the columns of a value"),
        ({"valueFormat": "json", "valueSchema": " "}, "option valueSchema: is empty"),
        ({"valueSchema": "a INT"}, "option valueSchema: has no effect here: it needs valueFormat"),
        (
            {"valueFormat": "avro", "valueSchema": "{}", "valueSchema__credentials__file": "/c"},
            "option valueSchema.credentials.file: needs the URL of a registry as valueSchema",
        ),
        ({"badRows": "null"}, "option badRows: has no effect here: it needs valueFormat"),
        ({"valueFormat": "json", "valueSchema": "a INT", "badRows": "skip"}, "option badRows: invalid value 'skip'"),
        (
            {"path": "/d", "valueFormat": "json", "valueSchema": "a INT", "badRows": "deadletter"},
            "option badRows: deadletter publishes, and a path is read without a broker: use url",
        ),
        ({"path": "http://h/b"}, "option path: invalid URL 'http://h/b': a tier is one of"),
        ({"path": "s3://b/p", "toymq__token": "x"}, "has no effect here: a bucket is read without a broker"),
        ({"path": "s3://b/p", "tierUrl": "s3://b/p"}, "option tierUrl: has no effect here"),
        ({"path": "/d", "tier": "bucket"}, "option tier: has no effect here"),
        ({"tierUrl": "/mnt/b"}, "option tierUrl: invalid URL '/mnt/b'"),
        ({"tierUrl": "s3://b/p", "tier": "both"}, "option tier: invalid value 'both': write auto or broker or bucket"),
        ({"tier": "auto"}, "option tier: needs tierUrl"),
        ({"path": "s3://b/p", "startingOffsets": "latestByKey"}, "option startingOffsets: latestByKey seeks rows here"),
        ({"tierUrl": "s3://b/p", "tier": "bucket", "startingOffsets": "latestByKey"}, "latestByKey seeks rows here"),
    ],
)
def test_a_batch_refuses(options: dict[str, str], named: str) -> None:
    assert named in refusal("batch", **options)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    assert f"option {name}: has no effect here: a stream has no end" == refusal("stream", **{name: "1"})


def test_typed_values() -> None:
    assert source().values is None
    typed = source("stream", valueFormat="JSON", valueSchema="a INT", badRows="deadletter").values
    assert typed == ValueOptions("json", "a INT", "deadletter")
    assert source(path="/d", valueFormat="json", valueSchema="a INT").values == ValueOptions("json", "a INT", "fail")
    assert parse_sink({"url": "toymq://h:1", "valueformat": "json"}, "batch").values == ValueOptions("json", None)
    with pytest.raises(OptionError, match="option valueSchema: is missing: valueFormat=avro needs"):
        parse_sink({"url": "toymq://h:1", "valueformat": "avro"}, "batch")
    with pytest.raises(OptionError, match="unknown option badrows"):
        parse_sink({"url": "toymq://h:1", "valueformat": "json", "badrows": "null"}, "batch")


def test_a_stream_refuses_a_bad_delay() -> None:
    refused = refusal("stream", maxTriggerDelay="soon", minOffsetsPerTrigger="2")
    assert "option maxTriggerDelay: invalid duration 'soon'" in refused
    assert "option maxTriggerDelay: needs minOffsetsPerTrigger" in refusal("stream", maxTriggerDelay="5m")
    assert source("stream", maxTriggerDelay="5m", minOffsetsPerTrigger="2").max_trigger_delay_ms == 300_000


def test_a_secret_is_in_no_message() -> None:
    assert "s3cret" not in refusal(url="toymq://s3cret@h:x")


def test_the_sink() -> None:
    sink = parse_sink({"url": "toymq://h:1", "topic": "t", "producerid": "nightly-1", "checkpointlocation": "/c"}, "stream")
    assert (sink.address, sink.topic, sink.producer_id) == (BrokerAddress("toymq://h:1"), "t", "nightly-1")
    for options, named in (
        ({"path": "/d"}, "option path: a sink publishes through a broker"),
        ({"url": "toymq://h", "topic": "a b"}, "option topic: topic name must be"),
        ({"url": "toymq://h", "producerid": "a b"}, "option producerId: invalid value"),
        ({"url": "toymq://h", "subscribe": "t"}, "unknown option subscribe"),
        ({"topic": "t"}, "exactly one of the options url, toymq.bootstrap.servers"),
        ({"url": "toymq://h", "checkpointlocation": "/c"}, "option checkpointLocation: has no effect here: a batch has no"),
        ({"url": "toymq://h", "queryname": "q"}, "option queryName: has no effect here: a batch has no checkpoint"),
    ):
        with pytest.raises(OptionError, match=named):
            parse_sink(options, "batch")
