"""What the copies of a cluster hold when each is opened alone, by a broker that is in no cluster."""

from collections.abc import Mapping

from tests.support.broker_process import BrokerProcess, run
from tests.support.cluster_rig import ClusterRig
from tests.support.cluster_world import Read
from toymq import sync
from toymq_chaos.history import digest_of
from toymq_py.storage.record import iter_frames


def records_of(broker: BrokerProcess) -> dict[tuple[str, int], Read]:
    """All records, by topic and id."""
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


def broken_replicas(rig: ClusterRig, owed: Mapping[tuple[str, int], Read]) -> list[str]:
    """What the copies of nodes that do not run lack of what is ``owed``, or hold otherwise, and what ``toymq verify`` says."""
    broken = []
    for node in rig.nodes.values():
        checked = run("verify", node.data_dir)
        if checked.returncode:
            broken.append(f"{node.name}: toymq verify: {checked.stdout[-300:]}{checked.stderr[-300:]}")
        with BrokerProcess(node.data_dir) as broker:
            found = records_of(broker)
        wrong = {where: read for where, read in owed.items() if found.get(where) != read}
        if wrong:
            first = next(iter(wrong))
            broken.append(f"{node.name}: {len(wrong)} of {len(owed)}, first {first}: {found.get(first)}, not {wrong[first]}")
    return broken
