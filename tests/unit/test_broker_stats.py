"""The object of STATS: its counts, and a disk that does not answer."""

from tests.support.broker_rig import BrokerRig
from toymq_py import broker_stats

PROCESS = {"uptime_s": 1.5, "rss_bytes": 2, "tasks": 3, "loop_lag_s": 0.25}


async def test_it_has_what_the_broker_and_its_process_are() -> None:
    rig = BrokerRig()
    broker = rig.broker
    broker.metrics.publish_total = 7
    found = broker_stats.stats(
        broker.options, broker.metrics, broker.space, rig.disk, rig.clock, ["http://127.0.0.1:1"], PROCESS
    )
    assert found["publish_total"] == 7
    assert {name: found[name] for name in PROCESS} == PROCESS
    assert found["gateways"] == ["http://127.0.0.1:1"]
    assert found["limits"]["max_payload"] == broker.options.max_payload_bytes
    assert found == {**broker.stats(), **PROCESS, "gateways": ["http://127.0.0.1:1"]}


async def test_a_disk_that_does_not_answer_shows_nothing_free() -> None:
    rig = BrokerRig()
    broker = rig.broker

    class Silent:
        def free_bytes(self, path: str) -> int:
            raise OSError(path)

    found = broker_stats.stats(
        broker.options, broker.metrics, broker.space, Silent(), rig.clock, [], PROCESS  # type: ignore[arg-type]
    )  # fmt: skip
    assert found["disk_free_bytes"] == 0
