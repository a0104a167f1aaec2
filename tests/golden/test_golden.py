"""Every version opens the golden directory, sees what it saw, and writes the same bytes."""

import random
import shutil
from pathlib import Path

import pytest

from tests.golden import make_golden
from tests.support.fake_clock import FakeClock
from tests.support.sim_loop import SimLoop
from toymq_py.broker import Broker
from toymq_py.config.options import BrokerOptions
from toymq_py.storage.commit.batch import CommitState
from toymq_py.storage.fs import RealFileSystem

VERSIONS = [Path(__file__).with_name(name) for name in ("v1", "v2", "v3")]
NEWEST = VERSIONS[-1]


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_the_same_records_are_the_same_bytes(tmp_path: Path) -> None:
    make_golden.make(tmp_path / "data")
    assert files(tmp_path / "data") == files(NEWEST / "data")


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_its_dump_is_what_it_was(version: Path) -> None:
    assert list(make_golden.dump(version / "data")) == (version / "dump.txt").read_text().splitlines()


def open_broker(data: Path) -> tuple[Broker, SimLoop]:
    clock = FakeClock(wall_ns=make_golden.TS_NS + 10**12)
    loop = SimLoop(clock, random.Random(1))
    broker = Broker(BrokerOptions(data_dir=str(data), min_free_bytes=0), fs=RealFileSystem(), scheduler=loop, clock=clock)
    broker.open(1)
    return broker, loop


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
@pytest.mark.parametrize("sidecars", [True, False])
def test_a_broker_opens_it_and_goes_on(tmp_path: Path, sidecars: bool, version: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(version / "data", data)
    if not sidecars:
        for path in data.rglob("*.idx"):
            path.unlink()
    broker, loop = open_broker(data)
    found = {
        name: (topic.log.first_id, topic.log.committed_id, topic.log.lost, topic.log.removed, topic.state)
        for name, topic in broker.topics.items()
    }
    if version != VERSIONS[0]:
        assert found.pop("producers") == (0, 7, [(5, 5)], [], "degraded")
    if version == NEWEST:
        assert found.pop("mixed") == (0, 6, [(2, 3)], [], "degraded")
    assert found == {
        "consumers": (0, 8, [], [], "ok"),
        "every.kind": (0, 12, [], [], "ok"),
        "hole": (0, 6, [(2, 2)], [], "degraded"),
        "previous": (0, 4, [], [], "degraded"),
        "retained": (10, 33, [], [(20, 29)], "ok"),
        "torn": (0, 2, [], [], "ok"),
    }

    def ready(topic: str, consumer: str) -> list[tuple[int, int]]:
        subscription, _ = broker.topics[topic].subscribe(
            consumer, None, window=100, visibility_s=None, wake=lambda _: True, ended=lambda _, __: None
        )
        taken = []
        while (delivery := subscription.take(1 << 20)) is not None:
            taken += [(msg_id, delivery.attempt) for msg_id in delivery.records.ids[delivery.start : delivery.stop]]
        return taken

    assert ready("consumers", "billing") == [(3, 8), (6, 1), (7, 1)]
    assert ready("consumers", "fresh") == [(n, 1) for n in range(8)]
    assert ready("consumers", "late") == [(6, 1), (7, 1)]
    assert broker.topics["consumers"].settings.to_json() == {"visibility": 5000}
    assert ready("previous", "c") == [(2, 1), (3, 1)]
    assert ready("retained", "c") == [(15, 4), (30, 1), (31, 1), (32, 1)]
    assert ready("hole", "new") == [(n, 1) for n in (0, 1, 3, 4, 5)]
    assert broker.topics["hole"].publisher.publish([b"h5"], [b"again"])[0].duplicate, "keys are known again"
    run, row, _ = broker.topics["every.kind"].log.read(6, 1)
    assert run is not None
    assert run.headers is not None
    assert run.headers[row] == b"trace: 0-1\nname: w\xc3\xb6rld\n"
    if version != VERSIONS[0]:
        topic = broker.topics.pop("producers")
        assert topic.publisher.publish([b"k"], [b"again"])[0].first_id == 2, "a plain key is known again"
        assert topic.publisher.publish([b"p"], [b"mixed"])[0].error is not None
        assert topic.publisher.producers.find(b"q", 0) == (7, 1)
        assert topic.publisher.producers.find(b"p", 0) == (6, 4), "7 may have been lost unacknowledged"
        topic.close()
    if version == NEWEST:
        broker.topics.pop("mixed").close()
    for name, topic in broker.topics.items():
        outcome = topic.publisher.publish([b""], [b"more"])[0]
        loop.drain()
        assert (outcome.first_id, outcome.commit.state) == (found[name][1], CommitState.DONE)
    loop.advance(1)
    broker.close()
    again, _ = open_broker(data)
    if version != VERSIONS[0]:
        again.topics.pop("producers").close()
    if version == NEWEST:
        again.topics.pop("mixed").close()
    assert {name: topic.log.committed_id for name, topic in again.topics.items()} == {
        name: next_id + 1 for name, (_, next_id, *_) in found.items()
    }
    again.close()
