"""A segment that the broker may not read (EACCES) at its start: the rest of the topic is served, nothing counts as lost, and
the segment is served once it is readable. Tests run as root, to whom permissions do not apply, so the broker's file system
denies it."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.in_process import InProcess, serving
from toymq_py.storage.fs import File, RealFileSystem
from toymq_py.storage.segment import segment_name

PER_SEGMENT = 4
COUNT = 3 * PER_SEGMENT
SEALED, ACTIVE = PER_SEGMENT, 2 * PER_SEGMENT
"""First ids of the second and of the last segment."""


class Forbidding:
    """The machine's file system, except that one file is denied. Not a subclass: compiled classes cannot be subclassed here."""

    def __init__(self, path: Path) -> None:
        self._denied = str(path)
        self._real = RealFileSystem()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, write: bool = True) -> File:
        if path == self._denied:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return self._real.open(path, create=create, exclusive=exclusive, write=write)


async def delivered(served: InProcess, consumer: str, until: int) -> list[int]:
    """Return the ids that a new consumer gets, up to the last one."""
    wire = await served.connect()
    assert await wire.ask(b"SUB orders %b window=100\n" % consumer.encode()) == b"OK 1"
    ids: list[int] = []
    while not ids or ids[-1] < until:
        msg_id, _, body = await wire.message()
        assert body == b"%d" % msg_id + bytes(1000)
        ids.append(msg_id)
    await wire.nothing_before_pong()
    await wire.close()
    return ids


async def state_of(served: InProcess) -> tuple[str, int]:
    wire = await served.connect()
    described = json.loads(await wire.body(await wire.ask(b"DESCRIBE orders\n")))
    await wire.close()
    return described["state"], described["lost"]


@pytest.mark.parametrize("with_sidecars", [True, False])
@pytest.mark.parametrize("denied", [0, SEALED, ACTIVE])
async def test_a_segment_that_may_not_be_read_at_start_leaves_the_rest_of_its_topic_served(
    tmp_path: Path, denied: int, with_sidecars: bool
) -> None:
    """Found: such a segment closed the whole topic, reads included."""
    data, options = tmp_path / "d", {"segment_bytes": PER_SEGMENT * 1100}
    topic = data / "topics" / "orders"
    async with serving(data, **options) as served:
        wire = await served.connect()
        for n in range(COUNT):
            body = b"%d" % n + bytes(1000)
            assert await wire.ask(b"PUB orders - %d\n%b\n" % (len(body), body)) == b"OK %d" % n
    assert [path.name for path in sorted(topic.glob("*.log"))] == [segment_name(base) for base in (0, SEALED, ACTIVE)]
    for sidecar in topic.glob("*.idx") if not with_sidecars else ():
        sidecar.unlink()

    kept = [n for n in range(COUNT) if n not in range(denied, denied + PER_SEGMENT)]
    async with serving(data, fs=Forbidding(topic / segment_name(denied)), **options) as served:
        assert await delivered(served, "c", until=kept[-1]) == kept
        state, lost = await state_of(served)
        assert lost == 0, "what cannot be read now is not lost"
        wire = await served.connect()
        answer = await wire.ask(b"PUB orders - 1002\n%b\n" % (b"12" + bytes(1000)))
        if denied == ACTIVE:
            assert state == "failed"
            assert answer.startswith(b"ERR STORAGE"), "where the log ends is not known: nothing may be appended"
        else:
            assert (state, answer) == ("degraded", b"OK 12"), "publishing goes on"
        assert await wire.ask(b"PUB others - 1\nx\n") == b"OK 0"

    async with serving(data, **options) as served:
        assert await state_of(served) == ("ok", 0)
        last = COUNT - 1 if denied == ACTIVE else COUNT
        assert await delivered(served, "later", until=last) == list(range(last + 1)), "it is back"
