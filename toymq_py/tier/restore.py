"""Makes a data directory from a bucket alone, and says which ids the bucket never had.

A topic's newest state tells which ids it had assigned. Records that were not sealed then are lost with the disk: their ids stay
unused. More ids may have been assigned since that state, so new ids begin far above it (``ids_left_out``; ADR 0165, 0193), in a
new segment, since those of the bucket are sealed.
"""

import secrets
from collections.abc import Callable

from toymq_py.errors import DataDirectoryError
from toymq_py.storage.dirlock import DirectoryLock
from toymq_py.storage.fs import FileSystem, remove_tree
from toymq_py.storage.offline.backup_directory import is_empty, make_directory, utc
from toymq_py.storage.restoring import DIRECTORY_NAME, is_interrupted
from toymq_py.tier.bucket import Bucket
from toymq_py.tier.deletions import list_holdings
from toymq_py.tier.keys import Holding, Place, deleted_key
from toymq_py.tier.restore_at import restore_topic_at
from toymq_py.tier.restore_topic import Restored, restore_topic
from toymq_py.tier.states import choose, unused_from

_NOT_YET = "the bucket has nothing of it from {} or before: it was made later, or made anew"


def restore(
    fs: FileSystem, bucket: Bucket, data_dir: str, *, pid: int, now_ns: int,
    progress: Callable[[str], None] = lambda topic: None, at_ns: int | None = None,
    new_incarnation: Callable[[], str] = lambda: secrets.token_hex(8),
) -> list[Restored]:  # fmt: skip
    """Make a data directory. Its topics appear in one step, when everything is on the disk.

    Args:
        data_dir: missing or empty, apart from leftovers of an interrupted restore.
        pid: this process's id, for the LOCK file.
        now_ns: the time of the wall clock.
        progress: called with each topic before it is fetched.
        at_ns: restore the topics as they were at this time, with new incarnations; None: the newest state.

    Raises:
        DataDirectoryError: ``data_dir`` is not empty, or the bucket has no topic, or had none at that time.
        DirectoryLocked, OSError: about ``data_dir``.
        BucketError: the bucket cannot be read. A bucket that cannot be written is reported as a problem of each topic.
    """
    if not is_empty(fs, data_dir, besides=(DIRECTORY_NAME,) if is_interrupted(fs, data_dir) else ()):
        raise DataDirectoryError(f"{data_dir} is not empty: name a new directory, nothing was overwritten")
    found = list_holdings(bucket)
    chosen, left = choose(found, at_ns)
    if not chosen:
        raise DataDirectoryError(_no_topic(found))
    was_there = fs.is_dir(data_dir)
    make_directory(fs, data_dir)
    lock = DirectoryLock.take(fs, data_dir, pid, "toymq restore")
    try:
        staging = f"{data_dir}/{DIRECTORY_NAME}"
        remove_tree(fs, staging)
        fs.mkdir(staging)
        done = []
        for place in sorted(chosen):
            progress(place.topic)
            to = f"{staging}/{place.topic}"
            if at_ns is None:
                done.append(restore_topic(fs, bucket, place, chosen[place], to, now_ns))
                continue
            unused = [unused_from(bucket, each, found[each], now_ns) for each in (place, *left) if each.topic == place.topic]
            topic = restore_topic_at(
                fs, bucket, place, chosen[place], to, at_ns,
                goes_on_at=max(unused), incarnation=new_incarnation(),
            )  # fmt: skip
            done.append(topic or Restored(place, why_absent=_NOT_YET.format(utc(at_ns))))
        if all(each.why_absent for each in done):
            remove_tree(fs, staging)
            fs.unlink(f"{data_dir}/LOCK")
            if not was_there:
                fs.rmdir(data_dir)
            raise _nothing_of(found, at_ns)
        fs.sync_dir(staging)
        fs.rename(staging, f"{data_dir}/topics")
        fs.sync_dir(data_dir)
    finally:
        lock.release()
    for topic in done if at_ns is None else ():
        topic.problems += [f"an older incarnation, {place.incarnation}, is left in the bucket" for place in left
                           if place.topic == topic.place.topic]  # fmt: skip
    for topic in done:
        topic.problems += [
            f"{deleted_key(place)} cannot be read: {holding.bad_deletion}: this incarnation counts as not deleted"
            for place, holding in found.items() if place.topic == topic.place.topic and holding.bad_deletion is not None
        ]  # fmt: skip
    gone = sorted(place for place, holding in found.items() if holding.deleted)
    return [*(Restored(place, why_absent=_when_deleted(found[place])) for place in gone), *done]


def _when_deleted(holding: Holding) -> str:
    return "it was deleted" + ("" if holding.deleted_ns is None else f" at {utc(holding.deleted_ns)}")


def _no_topic(found: dict[Place, Holding]) -> str:
    if found:
        gone = [f"topic {place.topic}, incarnation {place.incarnation}: {_when_deleted(found[place])}" for place in found]
        return f"every topic in the bucket was deleted: {'; '.join(sorted(gone))}"
    return "there is no topic in the bucket: is the URL the one of --tier?"


def _nothing_of(found: dict[Place, Holding], at_ns: int | None) -> DataDirectoryError:
    first_ns = min((at for holding in found.values() for at in holding.states), default=0)
    first = f": its first state is of {utc(first_ns)}" if first_ns else ""
    return DataDirectoryError(f"the bucket has nothing from {utc(at_ns or 0)} or before{first}: name a later time")
