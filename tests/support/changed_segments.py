"""Changes that another program makes to segment files of a running broker, on the simulated disk."""

from tests.support.broker_rig import DIR, BrokerRig
from toymq_py.storage.offline.verify import verify_topic


def look(rig: BrokerRig) -> list[str]:
    told: list[str] = []
    rig.broker.on_lost = lambda: told.append(str(rig.broker.lost))
    rig.broker.check_directory()
    rig.loop.drain()
    return told


def overwrite(rig: BrokerRig, path: str, data: bytes) -> None:
    """Overwrite a file's content in place, as ``cp`` does."""
    file = rig.disk.open(path)
    file.truncate(0)
    file.pwrite(data, 0)
    file.close()


def rename_over(rig: BrokerRig, path: str, data: bytes) -> None:
    """Replace a file by another one with the same name, as ``mv`` and rsync do."""
    file = rig.disk.open(f"{path}.copy", create=True)
    file.pwrite(data, 0)
    file.close()
    rig.disk.rename(f"{path}.copy", path)


def lost_by_all(rig: BrokerRig, topic: str) -> tuple[int, int]:
    """Return the number of lost records by DESCRIBE, and that by ``toymq verify``."""
    rig.flush(topic)
    report = verify_topic(rig.disk, f"{DIR}/topics/{topic}", topic)
    return rig.numbers(topic)["lost"], report.lost


def topics_of_one_shape() -> BrokerRig:
    """Return a broker with two topics whose segments begin with the same ids and have the same sizes: only the segment headers
    tell them apart."""
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
