"""Topics are moved to another number of workers: complete, once, and wherever the command is killed or the power is cut."""

import errno
import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.support.mounts import mounted
from tests.support.shares import one_in
from tests.support.sim_disk import SimDisk
from toymq_py.config.webhooks import Webhook
from toymq_py.errors import DataDirectoryError
from toymq_py.partitions import Partitioned
from toymq_py.placement import worker_of
from toymq_py.storage import partitions_file, webhooks_file
from toymq_py.storage.fs import remove_tree
from toymq_py.storage.offline.redistribute import present, redistribute
from toymq_py.storage.partitions_file import StoredPartitions
from toymq_py.storage.topic_directories import topic_names
from toymq_py.storage.unclean_ends import FILE_NAME, count_life
from toymq_py.storage.workers_file import Division, divide, load, load_division, worker_path

ROOT = "/data/d"
TOPICS = [*(f"t{number}" for number in range(8)), "t1.dlq", "t2.dlq"]
OPS = ("open", "pwrite", "sync", "rename", "mkdir", "sync_dir", "unlink", "rmdir")


def home(number: int, topic: str) -> str:
    return worker_path(ROOT, worker_of(topic, number)) if number > 1 else ROOT


def made(number: int) -> SimDisk:
    """Return a directory for so many workers, with a webhook for each fourth topic."""
    disk = SimDisk(random.Random(1))
    for path in ("/data", ROOT):
        disk.mkdir(path)
    if number > 1:
        divide(disk, ROOT, number)
    hooks: dict[str, dict[str, Webhook]] = {}
    for at, topic in enumerate(TOPICS):
        directory = home(number, topic)
        for path in (f"{directory}/topics", f"{directory}/topics/{topic}"):
            disk.mkdir(path)
        file = disk.open(f"{directory}/topics/{topic}/00.log", create=True)
        file.pwrite(topic.encode(), 0)
        file.sync()
        for path in (f"{directory}/topics/{topic}", f"{directory}/topics", directory, ROOT, "/data", "/"):
            disk.sync_dir(path)
        if at % 4 == 0:
            hooks.setdefault(directory, {})[f"hook-{topic}"] = Webhook(topic=topic, url="https://example.com/")
    for directory, some in hooks.items():
        webhooks_file.FILE.write(disk, directory, webhooks_file.encode(some))
    return disk


def check(disk: SimDisk, number: int) -> None:
    """Check that everything is where ``number`` workers expect it, and nowhere else."""
    assert load(disk, ROOT) == (number if number > 1 else None)
    homes = {worker_path(ROOT, worker) for worker in range(number)} if number > 1 else {ROOT}
    for directory in homes:
        mine = sorted(topic for topic in TOPICS if home(number, topic) == directory)
        assert sorted(topic_names(disk, directory)) == mine
        for topic in mine:
            assert disk.read_file(f"{directory}/topics/{topic}/00.log") == topic.encode()
        hooks = {f"hook-{topic}" for topic in TOPICS[::4] if home(number, topic) == directory}
        assert webhooks_file.load(disk, directory).keys() == hooks
    assert disk.is_dir(f"{ROOT}/topics") == (number == 1)
    workers = disk.listdir(f"{ROOT}/workers") if disk.is_dir(f"{ROOT}/workers") else []
    assert len(workers) == (number if number > 1 else 0), workers


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 4), (4, 2), (3, 1), (1, 1), (2, 2)])
def test_topics_and_webhooks_are_where_their_workers_have_them(before: int, after: int) -> None:
    disk = made(before)
    moved: dict[str, int] = {}
    redistribute(disk, ROOT, after, moved.__setitem__)
    check(disk, after)
    assert moved == {topic: worker_of(topic, after) for topic in TOPICS if home(before, topic) != home(after, topic)}
    redistribute(disk, ROOT, after)
    check(disk, after)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 4), (4, 2), (3, 1)])
def test_a_message_that_kills_is_expected_where_it_went(before: int, after: int) -> None:
    """Found: the count of unclean ends stayed at the root, which no process serves any more."""
    disk = made(before)
    directories = [worker_path(ROOT, worker) for worker in range(before)] if before > 1 else [ROOT]
    for times, directory in enumerate(directories, 1):
        for _ in range(times):
            count_life(disk, directory)
    redistribute(disk, ROOT, after)
    homes = [worker_path(ROOT, worker) for worker in range(after)] if after > 1 else [ROOT]
    assert disk.exists(f"{ROOT}/{FILE_NAME}") == (after == 1)
    assert [count_life(disk, directory) for directory in homes] == [before] * after


def of(number: int) -> Division | None:
    return Division(number) if number > 1 else None


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (2, 1)])
@pytest.mark.parametrize("end", ["kill", "power cut"])
def test_killed_at_each_step_it_goes_on(before: int, after: int, op: str, end: str) -> None:
    """The nth call of each kind fails and the process ends there; no broker serves the directory until the command is run
    again."""
    nth = 0
    while True:
        nth += 1
        disk = made(before)
        fault = disk.fail(op, nth, errno.EIO)
        with suppress(OSError):
            redistribute(disk, ROOT, after)
        if not fault.fired:
            break
        disk.heal()
        disk = disk.kill() if end == "kill" else disk.crash(random.Random(nth))
        division = load_division(disk, ROOT)
        assert division in (of(before), of(after), Division(before, after))
        redistribute(disk, ROOT, after)
        check(disk, after)
    assert nth > 1 or op in ("rmdir", "unlink"), "nothing was tried"


@one_in(5)
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (2, 1)])
def test_killed_at_a_sync_and_then_cut_off_from_power_it_loses_nothing(before: int, after: int, share: int) -> None:
    """After a kill there may be names that were never synced: the next run may rely on them only after it has synced them."""
    syncs = 0
    while True:
        syncs += 1
        killed = made(before)
        fault = killed.fail("sync_dir", syncs, errno.EIO)
        with suppress(OSError):
            redistribute(killed, ROOT, after)
        if not fault.fired:
            break
        for op in ("rename", "sync_dir", "unlink", "rmdir") if syncs % share == 0 else ():
            for nth in range(1, 40):
                disk = made(before)
                disk.fail("sync_dir", syncs, errno.EIO)
                with suppress(OSError):
                    redistribute(disk, ROOT, after)
                disk.heal()
                disk = disk.kill()
                fault = disk.fail(op, nth, errno.EIO)
                with suppress(OSError):
                    redistribute(disk, ROOT, after)
                disk.heal()
                disk = disk.crash(random.Random(f"{op} {syncs} {nth}"))
                redistribute(disk, ROOT, after)
                check(disk, after)
                if not fault.fired:
                    break
            else:
                pytest.fail(f"{op}: more calls than were tried")
    assert syncs > 10


def _divided_topic(disk: SimDisk, directory: str, count: int, *, deleting: bool = False) -> None:
    stored = {"orders": StoredPartitions(Partitioned("orders", count), deleting)}
    partitions_file.FILE.write(disk, directory, partitions_file.encode(stored))


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (2, 1)])
def test_every_worker_knows_the_partitioned_topics(before: int, after: int) -> None:
    """Also when one worker had not created the topic yet, or has begun to delete it."""
    for deleting in (False, True):
        disk = made(before)
        _divided_topic(disk, home(before, "t0"), 4)
        if deleting and before > 1:
            others = {worker_path(ROOT, worker) for worker in range(before)} - {home(before, "t0")}
            other = min(others)
            _divided_topic(disk, other, 4, deleting=True)
        redistribute(disk, ROOT, after)
        check(disk, after)
        homes = {worker_path(ROOT, worker) for worker in range(after)} if after > 1 else {ROOT}
        for directory in (ROOT, *(worker_path(ROOT, worker) for worker in range(max(before, after)))):
            found = partitions_file.load(disk, directory)
            assert list(found) == (["orders"] if directory in homes else []), directory
            assert all(stored.deleting == (deleting and before > 1) for stored in found.values())


def test_two_numbers_of_partitions_are_no_division() -> None:
    disk = made(2)
    for worker in (0, 1):
        _divided_topic(disk, worker_path(ROOT, worker), 4 + worker)
    with pytest.raises(DataDirectoryError, match="topic orders has 4 partitions at one worker, and 5 in"):
        redistribute(disk, ROOT, 3)
    assert load(disk, ROOT) == 2, "nothing was changed"


def test_another_number_waits_for_the_first() -> None:
    disk = made(2)
    disk.fail("rename", 2, errno.EIO)
    with pytest.raises(OSError, match="Input"):
        redistribute(disk, ROOT, 4)
    assert present(disk, ROOT) == Division(2, 4)
    with pytest.raises(DataDirectoryError, match="complete that first, with --set 4"):
        redistribute(disk, ROOT, 2)
    for refused in (lambda: load(disk, ROOT), lambda: divide(disk, ROOT, 2)):
        with pytest.raises(DataDirectoryError, match="on its way to 4 workers"):
            refused()
    redistribute(disk, ROOT, 4)
    check(disk, 4)


def _twice(disk: SimDisk) -> None:
    for path in (f"{worker_path(ROOT, 0)}/topics", f"{worker_path(ROOT, 1)}/topics"):
        disk.mkdir(path)
        disk.mkdir(f"{path}/same")


def _amqp(disk: SimDisk) -> None:
    disk.open(f"{worker_path(ROOT, 0)}/amqp.json", create=True)


def _named_alike(disk: SimDisk) -> None:
    for worker, topic in enumerate(("a", "b")):
        directory = worker_path(ROOT, worker)
        found = webhooks_file.load(disk, directory) | {"mine": Webhook(topic=topic, url="https://example.com/")}
        webhooks_file.FILE.write(disk, directory, webhooks_file.encode(found))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [(_twice, "topic same is in"), (_amqp, "has amqp.json"), (_named_alike, "webhook mine is for a at one worker and another")],
)
def test_what_cannot_be_divided_is_left_alone(spoil: Callable[[SimDisk], None], said: str) -> None:
    disk = made(2)
    spoil(disk)
    with pytest.raises(DataDirectoryError, match=said):
        redistribute(disk, ROOT, 3)
    assert load(disk, ROOT) == 2


def test_a_webhook_on_a_pattern_goes_to_every_worker_and_back_to_one() -> None:
    disk = made(1)
    webhook = Webhook(topic="t.*", url="https://example.com/")
    webhooks_file.FILE.write(disk, ROOT, webhooks_file.encode(webhooks_file.load(disk, ROOT) | {"all": webhook}))
    redistribute(disk, ROOT, 3)
    assert all(webhooks_file.load(disk, worker_path(ROOT, worker))["all"] == webhook for worker in range(3))
    redistribute(disk, ROOT, 1)
    assert webhooks_file.load(disk, ROOT)["all"] == webhook


def test_what_is_unknown_stays() -> None:
    disk = made(3)
    disk.open(f"{worker_path(ROOT, 2)}/notes.txt", create=True)
    redistribute(disk, ROOT, 2)
    assert disk.listdir(worker_path(ROOT, 2)) == ["notes.txt"]


@pytest.mark.parametrize("content", [None, b"{"])
@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_a_number_that_is_lost_is_told_by_the_directories(content: bytes | None, after: int) -> None:
    disk = made(3)
    lose(disk, content)
    with pytest.raises(DataDirectoryError, match=f"`toymq workers {ROOT} --set 3` makes it again"):
        present(disk, ROOT)
    moved: dict[str, int] = {}
    redistribute(disk, ROOT, after, moved.__setitem__)
    check(disk, after)
    assert bool(moved) == (after != 3)
    redistribute(disk, ROOT, after)
    check(disk, after)


def lose(disk: SimDisk, content: bytes | None) -> None:
    """Remove or overwrite ``workers.json``."""
    disk.unlink(f"{ROOT}/workers.json")
    if content is not None:
        file = disk.open(f"{ROOT}/workers.json", create=True)
        file.pwrite(content, 0)
        file.sync()
    disk.sync_dir(ROOT)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("end", ["kill", "power cut"])
def test_killed_at_each_step_of_making_the_number_again_it_goes_on(op: str, end: str) -> None:
    nth, fired = 0, True
    while fired:
        nth += 1
        disk = made(3)
        lose(disk, b"{")
        fault = disk.fail(op, nth, errno.EIO)
        with suppress(OSError):
            redistribute(disk, ROOT, 2)
        fired = fault.fired
        disk.heal()
        disk = disk.kill() if end == "kill" else disk.crash(random.Random(nth))
        redistribute(disk, ROOT, 2)
        check(disk, 2)
    assert nth > 1 or op in ("rmdir", "unlink")


@pytest.mark.parametrize("known", [True, False])
def test_topics_of_a_worker_that_is_not_there_are_not_left_behind(known: bool) -> None:
    """The missing worker's disk may not be mounted: with another number of workers its topics would belong to none."""
    disk = made(3)
    if not known:
        lose(disk, None)
    disk.rename(worker_path(ROOT, 1), "/data/elsewhere")
    for number in (1, 2, 3, 4):
        with pytest.raises(DataDirectoryError, match=f"{ROOT}/workers/1 is missing"):
            redistribute(disk, ROOT, number)
    disk.rename("/data/elsewhere", worker_path(ROOT, 1))
    redistribute(disk, ROOT, 2)
    check(disk, 2)


def test_topics_that_are_there_twice_are_named_where_the_number_is_lost() -> None:
    """After the number was lost one process had served the directory, and had created a topic anew."""
    disk = made(2)
    lose(disk, None)
    topic = next(iter(topic_names(disk, worker_path(ROOT, 0))))
    for path in (f"{ROOT}/topics", f"{ROOT}/topics/{topic}"):
        disk.mkdir(path)
    with pytest.raises(DataDirectoryError, match=f"topic {topic} is in {ROOT} and in {ROOT}/workers/0; move one out of {ROOT}"):
        redistribute(disk, ROOT, 2)
    disk.rename(f"{ROOT}/topics/{topic}", "/data/aside")
    redistribute(disk, ROOT, 2)
    check(disk, 2)


def test_no_data_directory() -> None:
    disk = SimDisk(random.Random(1))
    disk.mkdir(ROOT)
    with pytest.raises(DataDirectoryError, match="has neither topics nor workers"):
        redistribute(disk, ROOT, 2)


@pytest.mark.parametrize(
    ("before", "after", "is_mounted"), [(1, 3, ROOT), (3, 2, worker_path(ROOT, 2)), (2, 1, worker_path(ROOT, 1))]
)  # fmt: skip
def test_no_topic_goes_to_another_file_system_and_nothing_is_begun(
    monkeypatch: pytest.MonkeyPatch, before: int, after: int, is_mounted: str
) -> None:  # fmt: skip
    """Found: the command ended with "Invalid cross-device link" in the middle, each time, and no broker served the directory
    from then on."""
    disk = made(before)
    found = disk.snapshot()
    with monkeypatch.context() as patch:
        mounted(patch, is_mounted)
        with pytest.raises(DataDirectoryError, match=rf"^topic t\d\S* would go from {is_mounted}/topics .*different file sys"):
            redistribute(disk, ROOT, after)
    assert disk.snapshot() == found
    redistribute(disk, ROOT, after)
    check(disk, after)


def test_topics_that_stay_on_mounted_file_systems_are_in_the_way_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = made(1)
    for topic in TOPICS:
        remove_tree(disk, f"{ROOT}/topics/{topic}")
    mounted(monkeypatch, ROOT)
    redistribute(disk, ROOT, 2)
    assert load(disk, ROOT) == 2
