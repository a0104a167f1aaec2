"""A scrape, read by Prometheus's own parser. Contract: clients.md, "Operations"."""

import asyncio
import errno
import gc
import time
from pathlib import Path

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.support.broker_rig import BrokerRig
from tests.support.fake_clock import FakeClock
from tests.support.in_process import serving
from tests.support.shares import one_in
from tests.support.sim_disk import SimFile
from toymq_py.metrics import TABLE, ClusterRows, Exemplar, Histogram, Kind
from toymq_py.observability.prometheus import OTHERS, exported_names, render, render_cluster
from toymq_py.version import __version__

Found = dict[str, dict[tuple[str, ...], float]]
"""Series by name, then by label values in the order of the label's names."""


def parse(body: bytes) -> Found:
    found: Found = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            rows = found.setdefault(sample.name, {})
            assert labels not in rows, f"{sample.name}{labels} is there twice"
            rows[labels] = sample.value
    return found


async def scrape(rig: BrokerRig) -> Found:
    body, content_type = await render(rig.broker, rig.clock)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    return parse(body)


def cluster_rows() -> ClusterRows:
    """Return the rows of a leader with a follower."""
    follower = ("n2",)
    labels = {
        "role": ("LEADING", "a"), "replica_lag_bytes": follower, "replica_lag_seconds": follower,
        "isr_changes_total": ("added",), "failovers_total": ("handed_over",), "replica_sync_seconds": follower,
        "group_topics": ("a",), "group_load": ("a",), "group_has_leader": ("a",),
    }  # fmt: skip
    numbers, histograms = {}, {}
    for metric in (metric for metric in TABLE if metric.of_cluster):
        if metric.kind is Kind.HISTOGRAM:
            histogram = Histogram(metric)
            histogram.observe(0.002, times=3)
            histograms[metric.name] = {labels.get(metric.name, ()): histogram}
        else:
            numbers[metric.name] = {labels.get(metric.name, ()): 1.0}
    return ClusterRows(numbers, histograms)


async def test_a_broker_of_its_own_has_no_metrics_of_a_cluster() -> None:
    rig = BrokerRig()
    body = (await render(rig.broker, rig.clock))[0].decode()
    assert not [metric.name for metric in TABLE if metric.of_cluster and f"toymq_{metric.name} " in body]


def test_a_node_that_follows_has_those_of_the_cluster_alone() -> None:
    body, _ = render_cluster(cluster_rows())
    families = {family.name for family in text_string_to_metric_families(body.decode())}
    assert families == {f"toymq_{metric.name}".removesuffix("_total") for metric in TABLE if metric.of_cluster}


async def test_histograms_of_a_cluster_have_their_followers_whether_the_node_leads_or_not() -> None:
    rig = BrokerRig()
    rig.broker.metrics.cluster = cluster_rows
    for body in ((await render(rig.broker, rig.clock))[0], render_cluster(cluster_rows())[0]):
        lines = body.decode().splitlines()
        assert 'toymq_replica_sync_seconds_bucket{replica="n2",le="0.001"} 0.0' in lines
        assert 'toymq_replica_sync_seconds_bucket{replica="n2",le="0.0025"} 3.0' in lines
        assert 'toymq_replica_sync_seconds_count{replica="n2"} 3.0' in lines
        assert 'toymq_etcd_request_seconds_bucket{le="+Inf"} 3.0' in lines


async def test_every_row_of_the_table_is_exported_with_its_type_help_and_labels() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    rig.take(rig.subscribe("t"))
    rig.broker.metrics.refused("BAD_NAME")
    rig.broker.metrics.alerts_firing["late"] = 1
    rig.broker.metrics.cluster = cluster_rows
    families = {f.name: f for f in text_string_to_metric_families((await render(rig.broker, rig.clock))[0].decode())}
    assert len(families) == len(TABLE)
    for metric in TABLE:
        family = families[f"toymq_{metric.name}".removesuffix("_total")]
        assert family.type == metric.kind.value
        assert family.documentation == f"{metric.help} Unit: {metric.unit}."
        assert family.samples, f"{metric.name} has a heading and no number"
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)
    assert {sample.name for f in families.values() for sample in f.samples} == exported_names()


async def test_the_numbers_are_those_of_the_broker() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a", b"b", b"c", b"d")
    subscription = rig.subscribe("t", "c")
    rig.take(subscription)
    rig.ack("t", 0, 1)
    rig.broker.topic("t").nack("c", [(2, 2)], 60.0)
    rig.clock.advance(7)
    rig.broker.metrics.refused("NO_SUCH_TOPIC", 3)
    found = await scrape(rig)
    assert found["toymq_publish_total"] == {(): 4}
    assert found["toymq_deliver_total"] == {(): 4}
    assert found["toymq_ack_total"] == {(): 2}
    assert found["toymq_nack_total"] == {(): 1}
    assert found["toymq_errors_total"] == {("NO_SUCH_TOPIC",): 3}
    assert found["toymq_topics"] == {("ok",): 1, ("degraded",): 0, ("failed",): 0}
    assert found["toymq_build_info"] == {("always", __version__): 1}
    assert found["toymq_topic_appended_total"] == {("t",): 4}
    assert found["toymq_topic_messages"] == {("t",): 4}
    assert found["toymq_topic_segments"] == {("t",): 1}
    assert found["toymq_topic_bytes"] == {("t",): rig.broker.topic("t").log.size_bytes}
    consumer = {name: rows for name, rows in found.items() if name.startswith("toymq_consumer_")}
    assert {rows.keys() == {("c", "t")} for rows in consumer.values()} == {True}
    assert {name.removeprefix("toymq_consumer_"): rows["c", "t"] for name, rows in consumer.items()} == {
        "ready_messages": 0, "inflight_messages": 1, "scheduled_messages": 1, "backlog_messages": 1, "sessions": 1,
        "attached": 1, "retrying_messages": 1,
        "oldest_unacked_seconds": 7,
    }  # fmt: skip


async def test_the_disk_is_told_of() -> None:
    rig = BrokerRig(min_free_bytes=1 << 20)
    rig.disk.capacity_bytes = 3 << 20
    rig.publish("t", b"x")
    found = await scrape(rig)
    assert found["toymq_disk_free_bytes"] == {(): rig.disk.free_bytes("/")}
    assert found["toymq_disk_low"] == {(): 0}
    rig.disk.capacity_bytes = rig.disk.used_bytes + 1000
    rig.advance(10)
    rig.publish("t", b"y")
    assert (await scrape(rig))["toymq_disk_low"] == {(): 1}


async def test_degraded_and_failed_topics_are_counted() -> None:
    rig = BrokerRig()
    rig.publish("poisoned", b"x")
    rig.publish("unopened", b"x")
    rig.publish("hole", b"x" * 300, b"y", b"z")
    file = rig.disk.open("/data/d/topics/hole/00000000000000000000.log")
    file.pwrite(b"\xff" * 8, 40)
    file.close()
    rig.disk = rig.disk.kill()
    rig.disk.fail("listdir", 1, errno.EIO, sticky=True, path="/data/d/topics/unopened")
    rig.restart()
    rig.disk.fail("sync", 1, 5)
    rig.publish("poisoned", b"y")
    found = await scrape(rig)
    assert found["toymq_topics"] == {("ok",): 0, ("degraded",): 1, ("failed",): 2}
    assert found["toymq_topic_lost_messages"] == {("hole",): 1, ("poisoned",): 0}


def buckets(found: Found, name: str) -> dict[float, float]:
    """Return the count of each bucket alone, by its bound; empty ones are left out."""
    below, alone = 0.0, {}
    for (bound,), total in found[f"toymq_{name}_bucket"].items():
        if total > below:
            alone[float(bound)] = total - below
        below = total
    assert found[f"toymq_{name}_count"] == {(): below}
    return alone


async def test_each_message_is_timed_from_its_own_loop_pass_to_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = BrokerRig()
    rig.publish("t", b"first of its segment")  # what is written once a segment is written behind it
    sync = SimFile.sync

    def slow_sync(file: SimFile) -> None:
        sync(file)
        rig.clock.advance(0.03)

    monkeypatch.setattr(SimFile, "sync", slow_sync)
    publisher = rig.broker.topic_or_new("t").publisher
    publisher.publish([b""] * 2, [b"x"] * 2)
    rig.loop.step()  # the pass is over: the batch is the disk's
    rig.clock.advance(0.01)
    publisher.publish([b""], [b"y"])
    rig.clock.advance(0.02)
    publisher.publish([b""], [b"z"])  # in the same pass: they are of one time
    rig.loop.step()  # that one, too, waits for the disk
    rig.clock.advance(0.01)
    publisher.publish([b""], [b"later, in the same batch"])
    rig.loop.drain()
    found = await scrape(rig)
    assert buckets(found, "commit_messages") == {1.0: 1, 4.0: 2}
    assert found["toymq_commit_messages_sum"] == {(): 6}
    assert buckets(found, "fsync_seconds") == {0.0001: 1, 0.05: 2}
    assert found["toymq_fsync_seconds_sum"] == {(): pytest.approx(0.06)}
    assert buckets(found, "publish_seconds") == {0.0001: 1, 0.1: 5}
    assert found["toymq_publish_seconds_sum"] == {(): pytest.approx(2 * 0.07 + 2 * 0.09 + 0.06)}


async def test_what_was_refused_is_not_timed_and_what_follows_is() -> None:
    rig = BrokerRig(segment_bytes=1 << 20)
    rig.publish("t", b"x")
    rig.disk.fail("pwrite", 1, 28)  # ENOSPC
    rig.publish("t", b"x", b"x")
    rig.publish("t", b"x", b"x", b"x")
    found = await scrape(rig)
    assert found["toymq_publish_seconds_count"] == found["toymq_publish_total"] == {(): 4}
    assert found["toymq_commit_messages_sum"] == {(): 4}


async def test_what_comes_in_the_pass_of_a_failure_is_timed() -> None:
    rig = BrokerRig()
    publisher = rig.broker.topic_or_new("t").publisher
    rig.disk.fail("pwrite", 1, 28)
    publisher.publish([b""], [b"refused"])
    rig.loop.step()
    rig.loop.step()  # on the disk's thread it has failed, and the loop does not know
    publisher.publish([b""], [b"refused with it"])
    rig.loop.step()
    publisher.publish([b""], [b"stored"])
    rig.loop.drain()
    found = await scrape(rig)
    assert found["toymq_publish_seconds_count"] == found["toymq_publish_total"] == {(): 1}


async def test_a_run_over_many_segments_is_timed_once_per_message() -> None:
    rig = BrokerRig()
    for n in range(1, 40):
        rig.publish("t", *[b"x" * 500] * n)
    found = await scrape(rig)
    assert len(rig.broker.topic("t").log.segments) > 50
    assert found["toymq_publish_seconds_count"] == found["toymq_publish_total"] == {(): sum(range(1, 40))}


async def test_fsync_interval_is_timed_when_it_comes() -> None:
    rig = BrokerRig(fsync="interval", fsync_interval_ms=5)
    rig.publish("t", b"x")
    assert (await scrape(rig))["toymq_fsync_seconds_count"] == {(): 0}
    rig.advance(0.006)
    assert (await scrape(rig))["toymq_fsync_seconds_count"] == {(): 1}


async def test_topics_beyond_the_limit_are_added_up_and_no_sum_changes() -> None:
    rig = BrokerRig(metrics_objects=5)
    for n, topic in enumerate("abcd"):
        rig.publish(topic, *[b"x"] * (n + 1))
        rig.subscribe(topic, "c1")
    found = await scrape(rig)
    assert found["toymq_topic_messages"] == {("a",): 1, ("b",): 2, (OTHERS,): 7}
    assert found["toymq_consumer_backlog_messages"] == {("c1", "a"): 1, ("c1", "b"): 2, (OTHERS, OTHERS): 7}


async def test_the_loop_is_given_back_between_topics_and_between_pieces() -> None:
    """A scrape of 400 topics takes a millisecond in all: it never runs longer than a few topics without a break."""
    rig = BrokerRig(metrics_objects=10_000)
    for n in range(400):
        rig.broker.topic_or_new(f"t{n}")

    class Ticking(FakeClock):
        def monotonic(self) -> float:
            self.advance(0.001)
            return super().monotonic()

    clock, held, last = Ticking(), [], 0.0
    running = asyncio.ensure_future(render(rig.broker, clock))
    while not running.done():
        await asyncio.sleep(0)
        held.append(FakeClock.monotonic(clock) - last)
        last = FakeClock.monotonic(clock)
    assert len(held) > 80
    assert max(held[1:]) <= 0.008, "its slices are 4 ms, and looking at the clock takes one"


@pytest.mark.usefixtures("thawed")
@one_in(10)
async def test_five_thousand_topics_do_not_hold_the_loop(share: int) -> None:
    """Measured in CPU time of this thread, so other processes do not count."""
    topics = 5_000 // share
    rig = BrokerRig(metrics_objects=2 * topics)
    for n in range(topics):
        topic = f"t{n}"
        rig.broker.topic_or_new(topic).publisher.publish([b""], [b"x"])
        rig.subscribe(topic)
    rig.loop.drain()
    gc.collect()
    gc.freeze()  # as the daemon does
    running, held, last = asyncio.ensure_future(render(rig.broker)), [], time.thread_time()
    while not running.done():
        await asyncio.sleep(0)
        now = time.thread_time()
        held.append(now - last)
        last = now
    assert len(parse(running.result()[0])["toymq_consumer_backlog_messages"]) == topics
    assert max(held) < 0.02, f"{max(held) * 1000:.1f} ms of {sum(held) * 1000:.0f} ms"


async def test_a_topic_that_goes_during_a_scrape_does_no_harm() -> None:
    rig = BrokerRig(metrics_objects=10_000)
    for n in range(50):
        rig.publish(f"t{n:02}", b"x")
        rig.subscribe(f"t{n:02}")

    class Slow(FakeClock):
        def monotonic(self) -> float:
            self.advance(1)
            return super().monotonic()

    running = asyncio.ensure_future(render(rig.broker, Slow()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for n in range(49):
        rig.delete(f"t{n:02}")
    found = parse((await running)[0])
    assert len(found["toymq_topic_messages"]) < 50
    assert found["toymq_topic_messages"]["t49",] == 1


async def test_errors_of_real_sessions_are_counted_by_code(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        wire = await served.connect()
        for line in (b"NOPE\n", b"DESCRIBE none\n", b"DESCRIBE none\n", b"SUB ! c\n"):
            assert (await wire.ask(line)).startswith(b"ERR")
        await served.close_connections()
        wire = await served.connect()
        assert await wire.ask(b"PUB t - 4\nbody\n") == b"OK 0"
        found = parse((await render(served.broker))[0])
    assert found["toymq_errors_total"] == {("BAD_NAME",): 1, ("NO_SUCH_TOPIC",): 2, ("UNKNOWN_COMMAND",): 1}
    assert found["toymq_connections_opened_total"] == {(): 2}
    assert found["toymq_publish_total"] == {(): 1}
    assert found["toymq_fsync_seconds_count"] == {(): 1}


async def test_openmetrics_has_the_same_numbers() -> None:
    """Read with the parser of OpenMetrics, which is strict about names, order and the end."""
    rig = BrokerRig()
    rig.publish("t", b"a", b"b")
    rig.take(rig.subscribe("t", "c"))
    rig.broker.metrics.refused("BAD_NAME")
    rig.broker.metrics.alerts_firing["late"] = 1
    rig.broker.metrics.cluster = cluster_rows
    body, content_type = await render(rig.broker, rig.clock, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in openmetrics.text_string_to_metric_families(body.decode()) for sample in family.samples
    }  # fmt: skip
    plain = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families((await render(rig.broker, rig.clock))[0].decode())
        for sample in family.samples
    }
    assert found == plain
    assert {name for name, _ in found} == exported_names()


async def test_a_bucket_names_the_newest_message_that_is_followed() -> None:
    """OpenMetrics gives a bucket an exemplar with a trace; the text format has none."""
    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    metrics = BrokerRig().broker.metrics
    metrics.publish_seconds.observe(0.2, 3)
    for value, of_span in ((0.2, span), (0.15, "1" * 16), (99.0, "2" * 16)):
        metrics.publish_seconds.exemplify(Exemplar(value, trace, of_span, 1_700_000_000.25))
    rig = BrokerRig()
    rig.broker.metrics = metrics
    body, _ = await render(rig.broker, rig.clock, "application/openmetrics-text")
    exemplars = {
        sample.labels["le"]: sample.exemplar
        for family in openmetrics.text_string_to_metric_families(body.decode()) for sample in family.samples
        if sample.exemplar is not None
    }  # fmt: skip
    assert {le: (found.value, found.labels["span_id"], float(found.timestamp)) for le, found in exemplars.items()} == {
        "0.25": (0.15, "1" * 16, 1_700_000_000.25), "+Inf": (99.0, "2" * 16, 1_700_000_000.25),
    }  # fmt: skip
    assert {found.labels["trace_id"] for found in exemplars.values()} == {trace}
    assert trace not in (await render(rig.broker, rig.clock))[0].decode()
