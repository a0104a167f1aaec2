"""The context that all requests of the gateway share."""

import errno

import pytest

from tests.support.http_rig import HttpRig, refused
from tests.support.sim_disk import SimDisk
from toymq_py.errors import ShuttingDown


async def test_during_the_shutdown_there_is_no_new_work(rig: HttpRig) -> None:
    assert rig.gateway is not None
    rig.gateway.refuse_late()
    rig.gateway.waiting.stop()
    with pytest.raises(ShuttingDown, match="try again later"):
        rig.gateway.refuse_late()
    refused(await rig.ask("PUT", "/v1/topics/t/consumers/c", json={"seek": "earliest"}), 404, "NO_SUCH_TOPIC")
    refused(await rig.ask("POST", "/v1/topics/t/messages", content=b"x"), 503, "SHUTTING_DOWN")


async def test_a_commit_is_waited_for_and_its_failure_is_told(rig: HttpRig, fs: SimDisk) -> None:
    assert rig.gateway is not None
    await rig.publish("t", "a")
    topic = rig.broker.topics["t"]
    (stored,) = topic.publish([b""], [b"x"])
    assert await rig.gateway.settled(stored.commit) is None
    fs.fail("sync", 1, errno.EIO, sticky=True)
    (lost,) = topic.publish([b""], [b"y"])
    error = await rig.gateway.settled(lost.commit)
    assert error is not None
    assert error.code == "STORAGE_FAILED"
    fs.heal()
