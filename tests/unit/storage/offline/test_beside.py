"""Files beside the topics: each is checked, and a damaged one is put aside."""

import random

import pytest

from tests.support.logs import disk_with, some_frames
from tests.support.sim_disk import SimDisk
from toymq_py.config.webhooks import Webhook
from toymq_py.storage import amqp_file, webhooks_file
from toymq_py.storage.offline.beside import BESIDE, BesideFile
from toymq_py.storage.offline.repair import repair
from toymq_py.storage.offline.verify import verify

GOOD = {
    "webhooks.json": webhooks_file.encode({"hook": Webhook("t", "http://a.example/")}),
    "amqp.json": amqp_file.encode({"exchanges": [{"name": "a.example"}]}),
}


@pytest.mark.parametrize("file", BESIDE, ids=lambda file: file.name)
def test_a_damaged_file_is_found_and_put_aside(file: BesideFile) -> None:
    disk = disk_with({0: b"".join(some_frames(3))})
    damaged = GOOD[file.name].replace(b"a.example", b"b.example")
    file.write(disk, "/data", damaged)
    *_, found = verify(disk, "/data")
    assert (found.topic, found.damaged) == (file.name, True)
    assert found.findings[0].text.endswith(f"; {file.when_damaged}")
    (done,) = repair(disk, "/data", pid=1)
    assert (done.topic, done.quarantined, done.notes) == (file.name, [file.name], [file.put_aside])
    disk = disk.crash()
    assert disk.read_file(f"/data/quarantine/1/{file.name}") == damaged
    assert not any(report.damaged for report in verify(disk, "/data"))


@pytest.mark.parametrize("file", BESIDE, ids=lambda file: file.name)
def test_a_missing_file_and_a_good_one_have_no_problem(file: BesideFile) -> None:
    disk = SimDisk(random.Random(1))
    assert (file.read(disk, "/data"), file.problem(disk, "/data")) == (None, None)
    file.write(disk, "/data", GOOD[file.name])
    assert (file.read(disk, "/data"), file.problem(disk, "/data")) == (GOOD[file.name], None)
