"""A follower's join as a model at the grain of files: plan, fuzzy copy, spool, replay, what is put aside.

State. ``World`` is the leader's files, the follower's files as they are and as a power cut leaves them, the spool, and what is
left of the plan. The leader makes any operation of the seam at any moment of the join: write, truncate, create, replace,
unlink, rename; a topic that is deleted and made anew is unlink, create, write of one path. It reads the live files piece by
piece, and a piece may be old when the follower writes it. The follower begins with nothing, the same files, a prefix, a suffix
of its own or other files, and may lose power or its link at any moment and join again.

Bounds: two paths, two pieces a file to begin with, ``operations`` of the leader, ``breaks`` (power cuts and lost links).
Not modelled: the records in a file, directories (a path stands for its name, too), live operations one by one (``apply and
sync`` is one step; the prefix of a stream is the theorem test's), rot, the order of acks (``replication.py``).

Promises, in ``broken``: a follower that joined has the leader's files, synced; a copy that may be elected or forced is of one
moment; no piece that only the follower had is lost, it is put aside.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tests.model.explore import Action, Key

Content = tuple[int, ...]
Files = tuple[Content | None, ...]
PATHS = ("p", "q")
HOLE = -1
OWN = 100
"""Pieces from here on are of the follower's former life only."""
OUT, PLANNING, COPYING, REPLAYING, LIVE = range(5)
BEFORE: Files = ((1, 2), (3,))
"""The leader's files at the beginning."""
FORMER: dict[str, Files] = {
    "nothing": (None, None),
    "the same files": BEFORE,
    "a prefix": ((1,), None),
    "a suffix of its own": ((1, 2, OWN), (3,)),
    "another log of the same length": ((1, OWN), (3,)),
    "a file that the leader lacks": (None, (3, OWN)),
}

WRITE, TRUNCATE, CREATE, REPLACE, UNLINK, RENAME = "write", "truncate", "create", "replace", "unlink", "rename"
Operation = tuple[str, int, int, Content]
"""What, path, offset or size or other path, data."""


class World(NamedTuple):
    """The leader's files, the follower's directory, and the join between them."""

    leader: Files = BEFORE
    origin: Files | None = None
    """The follower's directory before its first join, which is of one moment."""
    phase: int = OUT
    files: Files = (None, None)
    safe: Files = (None, None)
    """What a power cut leaves, path by path: this or ``files``."""
    streamed: bool = False
    """s0 is noted: operations go to the spool."""
    spool: tuple[Operation, ...] = ()
    plan: tuple[tuple[int, int], ...] = ()
    """Path and next offset of what is left to copy."""
    flight: tuple[int, int, Content] | None = None
    """A piece that was read and not written yet: path, offset, data."""
    aside: frozenset[tuple[int, Content]] = frozenset()
    aside_safe: frozenset[tuple[int, Content]] = frozenset()
    member: bool = True
    """In the in-sync set: it may be elected."""
    whole: bool = True
    """``replica.json`` says that no copy is under way: it may be forced."""
    operations: int = 0
    breaks: int = 0


def applied(files: Files, operation: Operation) -> Files:
    """Apply an operation as a follower does: idempotent, and quiet about what a later operation takes away."""
    what, path, at, data = operation
    after = list(files)
    content = files[path]
    match what:
        case "write" if content is not None:
            padded = (*content, *(HOLE,) * at)
            after[path] = (*padded[:at], *data, *content[at + len(data) :])
        case "truncate" if content is not None:
            after[path] = content[:at]
        case "create" if content is None:
            after[path] = ()
        case "replace":
            after[path] = data
        case "unlink":
            after[path] = None
        case "rename" if content is not None:
            after[at], after[path] = content, None
    return tuple(after)


Steps = Iterator[tuple[Action, World]]


class Join:
    """The model. ``mutant``: one rule of ``rules.FILE_RULES`` is left out."""

    def __init__(self, operations: int = 2, breaks: int = 1, mutant: str | None = None) -> None:
        self.operations = operations
        self.breaks = breaks
        self.mutant = mutant

    def initial(self) -> World:
        return World(operations=self.operations, breaks=self.breaks)

    def steps(self, world: World) -> Steps:
        w = world
        if w.origin is None:
            for name, files in FORMER.items():
                yield ("begins", name), w._replace(files=files, safe=files, origin=files)
            return
        if w.phase == LIVE:
            return  # what follows is one operation after the other, on equal directories
        if w.operations and (w.phase != OUT or w.breaks < self.breaks):  # before the first join: other beginnings
            for operation in self._operations(w):
                yield ("leader", *operation), self._operates(w, operation)
        if w.breaks:
            yield from self._breaks(w)
        match w.phase:
            case 0:
                yield from self._begins(w)
            case 1:
                yield from self._plans(w)
            case 2:
                yield from self._copies(w)
            case _:
                yield from self._replays(w)

    # The leader

    def _operations(self, w: World) -> Iterator[Operation]:
        fresh = 10 + w.operations
        for path, content in enumerate(w.leader):
            if content is None:
                yield CREATE, path, 0, ()
                continue
            yield WRITE, path, len(content), (fresh,)
            if content:
                yield TRUNCATE, path, len(content) - 1, ()
            yield REPLACE, path, 0, (fresh,)
            yield UNLINK, path, 0, ()
            yield RENAME, path, 1 - path, ()

    def _operates(self, w: World, operation: Operation) -> World:
        leader = applied(w.leader, operation)
        sent: tuple[Operation, ...] = (operation,) if w.streamed else ()
        what, path, other, _ = operation
        if sent and what == RENAME and w.phase in (PLANNING, COPYING) and self.mutant != "rename_by_name":
            sent = ((REPLACE, other, 0, leader[other] or ()), (UNLINK, path, 0, ()))
        return w._replace(
            leader=leader, spool=(*w.spool, *sent), operations=w.operations - 1
        )

    # The join

    def _begins(self, w: World) -> Steps:
        """Begin a join: T3 without the follower, then s0; the spool of an earlier join is discarded."""
        spool = w.spool if self.mutant == "old_spool" else ()
        member = self.mutant == "join_in_isr" and w.member
        yield ("joins",), w._replace(phase=PLANNING, spool=spool, streamed=self.mutant != "s0_after_plan", member=member)

    def _plans(self, w: World) -> Steps:
        """MANIFEST and PLAN: each path is kept, appended to or copied whole; the follower's surplus is put aside."""
        files, plan, aside = list(w.files), [], set(w.aside)
        for path, (ours, theirs) in enumerate(zip(w.leader, w.files, strict=True)):
            keep = self._kept(ours, theirs)
            if theirs is not None and keep < len(theirs) and self.mutant not in ("no_aside_cut", "suffix_cut"):
                if self.mutant == "aside_overwrites":
                    aside = {put for put in aside if put[0] != path}
                aside.add((path, theirs))
            if theirs is not None and self.mutant != "no_aside_cut":
                files[path] = None if ours is None else theirs[:keep]
            if ours is not None and not (theirs is not None and keep == len(ours) == len(theirs)):
                files[path] = files[path] or ()
                plan.append((path, keep))
        after = w._replace(phase=COPYING, files=tuple(files), plan=tuple(plan), aside=frozenset(aside))
        after = after._replace(whole=self.mutant == "marker_missing" and w.whole)
        yield ("plans",), after if self.mutant == "aside_unsynced" else after._replace(aside_safe=after.aside)

    def _kept(self, ours: Content | None, theirs: Content | None) -> int:
        """Return how many pieces of the follower's file stay."""
        if ours is None or theirs is None:
            return 0
        if self.mutant == "prefix_by_size":
            return min(len(ours), len(theirs))
        return len(theirs) if theirs == ours[: len(theirs)] else 0

    def _copies(self, w: World) -> Steps:
        if w.flight is not None:
            path, at, data = w.flight
            yield ("copied", path, at), w._replace(files=applied(w.files, (WRITE, path, at, data)), flight=None)
        elif w.plan:
            for path, at in w.plan:
                rest = tuple(left for left in w.plan if left[0] != path)
                content = w.leader[path]
                if content is None or at >= len(content):  # vanished, or its end
                    yield ("ends", path), w._replace(plan=rest)
                else:
                    flight = (path, at, content[at : at + 1])
                    yield ("reads", path, at), w._replace(plan=tuple(sorted((*rest, (path, at + 1)))), flight=flight)
        else:
            yield ("copied_all",), w._replace(phase=REPLAYING, streamed=True)
        if self.mutant == "no_spool" and w.spool:
            yield ("applies", *w.spool[0]), w._replace(files=applied(w.files, w.spool[0]), spool=w.spool[1:])

    def _replays(self, w: World) -> Steps:
        if w.spool and self.mutant != "ack_before_replay":
            yield ("applies", *w.spool[0]), w._replace(files=applied(w.files, w.spool[0]), spool=w.spool[1:])
            return
        after = w._replace(phase=LIVE, whole=True)
        if self.mutant == "ack_before_replay":
            after = after._replace(spool=())
        yield ("joined",), after._replace(member=True) if self.mutant == "copied_unsynced" else self._synced(after)

    def _synced(self, w: World) -> World:
        return w._replace(safe=w.files, aside_safe=w.aside, member=True)

    # Power cuts and lost links

    def _breaks(self, w: World) -> Steps:
        out = w._replace(phase=OUT, streamed=False, plan=(), flight=None, breaks=w.breaks - 1)
        if w.phase != OUT:
            yield ("link",), out
        for first in {w.files[0], w.safe[0]}:
            for second in {w.files[1], w.safe[1]}:
                left = (first, second)
                yield ("power", *map(_shown, left)), out._replace(files=left, safe=left, aside=w.aside_safe)

    # What must never be true

    def broken(self, world: World) -> str | None:
        w = world
        if w.phase == LIVE:
            if w.files != w.leader:
                return f"the follower joined with {_directory(w.files)}, the leader has {_directory(w.leader)}"
            if w.safe != w.leader:
                return f"the follower joined, and a power cut leaves it {_directory(w.safe)}"
        elif w.origin is not None and not w.safe == w.files == w.origin:
            if w.member:
                return f"a copy of several moments may be elected: {_directory(w.files)}"
            if w.whole:
                return f"a copy of several moments may be forced: {_directory(w.files)}"
        kept = {piece for content in w.safe for piece in content or ()}
        kept.update(piece for _, content in w.aside_safe for piece in content)
        kept.update(piece for content in w.files for piece in content or ())
        if lost := {piece for content in w.origin or () for piece in content or () if piece >= OWN} - kept:
            return f"pieces {sorted(lost)}, which only the follower had, are lost"
        return None

    # Keys and words

    def pack(self, world: World) -> Key:
        return tuple(world)

    def unpack(self, key: Key) -> World:
        return World(*key)  # type: ignore[arg-type]

    def words(self, action: Action) -> str:
        name, *values = map(str, action)
        if name in ("leader", "applies"):
            what, path, at, data = action[1:]
            place = f"to {PATHS[int(str(at))]}" if what == RENAME else f"at {at}, {data}" if data else f"at {at}"
            return f"{'the leader does' if name == 'leader' else 'the follower applies'} {what} {PATHS[int(str(path))]} {place}"
        if name in ("copied", "ends", "reads"):
            values[0] = PATHS[int(values[0])]
        return SENTENCES[name].format(*values)


SENTENCES = {
    "begins": "the follower begins with {0}",
    "joins": "T3 without the follower; the leader notes s0",
    "plans": "manifest and plan",
    "reads": "the leader reads {0}, piece {1}",
    "copied": "the follower writes {0}, piece {1}",
    "ends": "the leader has no more of {0}",
    "copied_all": "COPIED",
    "joined": "the follower syncs all, acks; T3 adds it",
    "link": "the link is lost",
    "power": "the follower loses power, keeps p: {0}, q: {1}",
}


def _shown(content: Content | None) -> str:
    return "no file" if content is None else str(list(content))


def _directory(files: Files) -> str:
    return ", ".join(f"{name}: {_shown(content)}" for name, content in zip(PATHS, files, strict=True))
