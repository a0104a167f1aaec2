"""Writes ``segments.json`` (``segment_heads``): behind the commit that began a segment, and later where that was not possible.

An entry is owed until it is written. It is skipped while an earlier one is being written, it fails on a full disk, and a kill
may come before it. What is owed is written when the earlier write has ended, at each look at the directory, at the end of an
orderly stop, and at a start.
"""

import logging
from collections.abc import Callable, Iterable, Mapping

from toymq_py.callbacks import run_now
from toymq_py.storage.id_ranges import subtract
from toymq_py.storage.log import Log
from toymq_py.storage.segment import segment_name
from toymq_py.storage.segment_heads import FILE_NAME, Head, KnownHeads, look_again, read_heads, store

logger = logging.getLogger("toymq_py.storage")

RunBehind = Callable[[Callable[[], None], Callable[[], None]], None]


class HeadsWriter:
    """Writes ``segments.json`` of one log. Belongs to the event loop."""

    def __init__(
        self,
        log: Log,
        known: KnownHeads,
        run_behind: RunBehind,
        are_stored: Callable[[], bool],
        *,
        syncs: bool = False,
    ) -> None:
        """
        Args:
            known: what the file says. One that cannot be trusted is left as it is, for its owner to look at, until a commit
                writes it.
            run_behind: runs a job on a sync thread, then its callback on the loop.
            are_stored: whether the first records of all segments are on stable storage now, unless this object syncs them.
            syncs: whether to sync segments before their heads are written, since nothing else does (``--fsync never``).
        """
        self._log = log
        log.heads = known
        self._run_behind = run_behind
        self.due = True
        """Whether a segment may have begun whose head is not known, so that the next commit is to write the file."""
        self._is_owed = known.problem is None
        """Whether to write the file without a commit, if it lacks a head."""
        self._writing = False
        self._failing = False
        self._incarnation = known.incarnation if known.problem is None else None
        self._is_changed = False
        """Whether another program changed or removed the file."""
        self._syncs = syncs
        self._are_stored = are_stored
        self._sync_failed = False
        """Whether a sync has failed. None is tried again: it would succeed without the record (ADR 0002)."""

    def name(self, incarnation: str) -> None:
        """Write the log's incarnation into the file from the next commit on."""
        self._incarnation = incarnation

    def known(self, base_id: int) -> Head | None:
        """The head of a segment, if it is on stable storage."""
        return self._known.get(base_id)

    @property
    def _known(self) -> Mapping[int, Head]:
        """The heads of this log that are on stable storage."""
        known = self._log.heads
        return known.heads if known.problem is None else {}

    def note(self, before: KnownHeads, now: KnownHeads | None) -> None:
        """Note a look at the file (``look_again``): one that another program changed or removed is written anew, with what this
        broker knows. Otherwise the next start would believe it, and might refuse the log's own segments."""
        if self._writing or self._log.heads is not before:  # the broker wrote it meanwhile
            return
        if now is not None:
            self._log.heads = now
        elif not self._is_changed:
            self._change()
        self.settle()

    def _change(self) -> None:
        self._is_changed = self._is_owed = True
        logger.error("%s/%s was changed or removed below the running broker: what the broker knows counts, and is written "
                     "anew unless publishing has failed", self._log.path, FILE_NAME)  # fmt: skip

    def begun(self) -> None:
        """Note that a segment has begun."""
        self.due = self._is_owed = True

    def settle(self) -> None:
        """Write what is owed, behind, unless it is not on stable storage yet."""
        if self._is_owed and not self._writing and self._are_stored():
            self._settle(self._run_behind)

    def finish(self) -> None:
        """Write what is owed. Blocks; for shutdown, when all is on stable storage and no job runs."""
        if not self._is_changed and look_again(self._log.fs, self._log.path, self._log.heads) is None:
            self._change()
        if self._is_owed:
            self._settle(run_now)

    def _settle(self, run: RunBehind) -> None:
        self._is_owed = False
        if self._is_changed or any(base_id not in self._known for base_id in self._bases()):
            self._write(run)

    def record(self) -> None:
        """Write the heads of all segments; also the known heads of those that are to stay, and of those whose files still
        exist, since a removed segment may be in the log again after a kill. Assumes that the segments' first records are on
        stable storage, unless this object syncs them."""
        self._write(self._run_behind)

    def _bases(self) -> list[int]:
        """First ids in the names of the segments that have a record and are on this disk."""
        return [each.name_id for each in self._log.segments if each.next_id > each.base_id and each.sha256 is None]

    def _stays(self, base_id: int) -> bool:
        log = self._log
        return log.segments[0].base_id <= base_id and bool(subtract([(base_id, base_id)], log.removed))

    def _write(self, run: RunBehind) -> None:
        self.due = self._is_owed = self._writing
        if self._writing:  # two writers of one temp file; what began meanwhile comes behind it
            return
        bases = self._bases()
        present = set(bases)
        known = {base_id: head for base_id, head in self._known.items() if base_id in present or self._stays(base_id)}
        others = {base_id: head for base_id, head in self._known.items() if base_id not in known}
        incarnation = self._incarnation
        is_named = incarnation == self._log.heads.incarnation
        if known.keys() >= present and not others and is_named and not self._is_changed:
            return
        if self._sync_failed:
            return
        fs, path = self._log.fs, self._log.path
        stored: list[KnownHeads] = []
        errors: list[OSError] = []

        def job() -> None:
            try:
                heads = dict(known)
                if not self._syncs or self._sync([base_id for base_id in bases if base_id not in known]):
                    heads |= read_heads(fs, path, bases, known)
                heads |= {base_id: others[base_id] for base_id in others if fs.exists(f"{path}/{segment_name(base_id)}")}
                stored.append(store(fs, path, heads, incarnation))
            except OSError as error:
                errors.append(error)

        def done() -> None:
            self._writing = False
            if stored:
                self._failing = self._is_changed = False
                self._log.heads = stored[0]
                self.settle()
                return
            self.due = self._is_owed = True
            if errors and not self._failing:  # once: it is tried again and again
                self._failing = True
                logger.warning("%s/%s not written: %s", path, FILE_NAME, errors[0])

        self._writing = True
        run(job, done)

    def _sync(self, bases: Iterable[int]) -> bool:
        """Sync segments. Blocks. Returns: whether their records are on stable storage. Raises: OSError of opening one."""
        fs, path = self._log.fs, self._log.path
        for base_id in bases:
            file = fs.open(f"{path}/{segment_name(base_id)}", write=False)
            try:
                file.sync()
            except OSError as error:
                self._sync_failed = True
                logger.warning("%s not synced (%s): %s gets no more heads until a restart", file.path, error, FILE_NAME)
                return False
            finally:
                file.close()
        return True
