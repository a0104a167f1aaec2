"""Reads the copies of a cluster, each opened alone by a broker that is in no cluster."""

import re
from collections.abc import Mapping
from pathlib import Path

from tests.support.broker_process import BrokerProcess
from tests.support.cluster_rig import ClusterRig
from tests.support.cluster_world import Read
from toymq import sync
from toymq_chaos.history import digest_of
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.offline.verify import verify
from toymq_py.storage.record import iter_frames

LOST = re.compile(r"damage from byte [0-9]+ to [0-9]+: records [0-9]+ to [0-9]+ are lost.*")


def records_of(broker: BrokerProcess) -> dict[tuple[str, int], Read]:
    """Return all records, by topic and id."""
    found: dict[tuple[str, int], Read] = {}
    with sync.connect(broker.url) as client:
        for topic in (described["topic"] for described in client.topics()):
            at, end = client.offsets(topic)
            while at < end:
                batch = client.fetch(topic, at, 500)
                for frame in iter_frames(batch.frames):
                    found[topic, frame.msg_id] = Read(frame.key.decode(), digest_of(frame.payload))
                at = batch.next_id
    return found


def findings_of(data_dir: Path, *, torn: bool) -> list[str]:
    """Return the damage that ``toymq verify`` finds. ``torn``: without lost records: the part of a batch that a power cut tore
    off counts as lost, although it was never acknowledged (ADR 0204)."""
    return [
        f"{finding.path}: {finding.text}"
        for report in verify(RealFileSystem(), str(data_dir))
        for finding in report.findings
        if finding.damage and not (torn and LOST.fullmatch(finding.text))
    ]


def broken_replicas(rig: ClusterRig, owed: Mapping[tuple[str, int], Read], *, torn: bool = False) -> list[str]:
    """Return what the copies of stopped nodes lack of ``owed``, or have otherwise, and what ``toymq verify`` finds."""
    broken = []
    for node in rig.nodes.values():
        broken += [f"{node.name}: toymq verify: {finding}" for finding in findings_of(node.data_dir, torn=torn)[:3]]
        with BrokerProcess(node.data_dir) as broker:
            found = records_of(broker)
        wrong = {where: read for where, read in owed.items() if found.get(where) != read}
        if wrong:
            first = next(iter(wrong))
            broken.append(f"{node.name}: {len(wrong)} of {len(owed)}, first {first}: {found.get(first)}, not {wrong[first]}")
    return broken
