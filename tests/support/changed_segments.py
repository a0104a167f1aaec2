"""Segments that another program changes below the running broker, on the simulated disk."""

from tests.support.broker_rig import DIR, BrokerRig
from toymq_py.storage.offline.verify import verify_topic


def look(rig: BrokerRig) -> list[str]:
    told: list[str] = []
    rig.broker.on_lost = lambda: told.append(str(rig.broker.lost))
    rig.broker.check_directory()
    rig.loop.drain()
    return told


def overwrite(rig: BrokerRig, path: str, data: bytes) -> None:
    """As ``cp`` does: the file stays, its bytes go."""
    file = rig.disk.open(path)
    file.truncate(0)
    file.pwrite(data, 0)
    file.close()


def rename_over(rig: BrokerRig, path: str, data: bytes) -> None:
    """As ``mv`` and rsync do: another file takes the name."""
    file = rig.disk.open(f"{path}.copy", create=True)
    file.pwrite(data, 0)
    file.close()
    rig.disk.rename(f"{path}.copy", path)


def lost_by_all(rig: BrokerRig, topic: str) -> tuple[int, int]:
    """What DESCRIBE counts as lost, and what ``toymq verify`` does."""
    rig.flush(topic)
    report = verify_topic(rig.disk, f"{DIR}/topics/{topic}", topic)
    return rig.numbers(topic)["lost"], report.lost


def topics_of_one_shape() -> BrokerRig:
    """Two topics whose segments begin with the same ids and are of the same size: only their heads tell them apart."""
    rig = BrokerRig()
    for topic, letter in (("public", b"o"), ("payroll", b"p")):
        for n in range(9):
            if n in (3, 6):
                rig.broker.topics[topic].committer.begin_segment()
                rig.loop.drain()
            rig.publish(topic, letter * 100)
    rig.publish("public", b"o")  # behind which the heads are written
    look(rig)
    return rig
