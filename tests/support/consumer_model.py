"""A simple model of a consumer's state, with one row per message id, to compare the real consumer with."""

from dataclasses import dataclass, field
from itertools import count

TURNS = count(1)


@dataclass(eq=False)
class Row:
    state: str = "fresh"  # fresh, ready, inflight, delayed, held, acked
    scheduled: bool = False  # what is fresh or ready is not due
    owner: object = None
    deadline: float = 0.0
    attempt: int = 0
    spared: bool = False  # uncounted, but delivered
    reason: str = "max-attempts"
    behind: bool = False  # its owner had it when a time-out of another one counted
    turn: int = 0

    def become(self, state: str, owner: object = None, deadline: float = 0.0) -> None:
        self.state, self.owner, self.deadline, self.behind = state, owner, deadline, False
        self.turn = next(TURNS)

    def spare(self) -> None:
        self.attempt -= 1
        self.spared = self.spared or not self.attempt


@dataclass
class Hang:
    """A lessee whose leases time out: tells which of the time-outs count as attempts."""

    on: object = None
    lot: int = 0  # time-outs of other messages that count nothing
    left: int = 0

    def counts(self, one: object) -> bool:
        if self.left and one != self.on:
            self.left -= 1
            return False
        self.on, self.lot = one, min(2 * self.lot, 64) or 4
        self.left = self.lot
        return True


@dataclass
class Model:
    start: int
    end: int
    rows: dict[int, Row] = field(default_factory=dict)
    max_attempts: int = 0
    maybe_below: int = 0
    late: set[object] = field(default_factory=set)
    """Owners that let a lease end, and have settled nothing since."""
    hung: dict[object, "Hang"] = field(default_factory=dict)
    """Of those that are late, if a time-out of theirs counted, or would have."""
    life: int = 0

    def __post_init__(self) -> None:
        before = self.rows
        self.rows = {i: Row("acked" if i < self.start else "fresh") for i in range(self.end)}
        for i, row in before.items():
            self.rows[i].scheduled = row.scheduled

    def return_(self, row: Row) -> None:
        """Make a row ready again, or hold it if it is out of attempts."""
        row.become("held" if 0 < self.max_attempts <= row.attempt else "ready")

    def pick(self, first: int, last: int, *states: str) -> list[Row]:
        return [self.rows[i] for i in range(first, last + 1) if self.rows[i].state in states]

    def cursor(self) -> int:
        """The id at which the next fresh delivery begins."""
        return next((i for i, r in self.rows.items() if r.state == "fresh" and not r.scheduled), self.end)

    def floor(self) -> int:
        return next((i for i in self.rows if self.rows[i].state != "acked"), self.end)

    def ack(self, first: int, last: int) -> int:
        got = [r for r in self.pick(first, last, "ready", "inflight", "delayed") if r.attempt or r.spared]
        earlier = self.pick(first, min(last + 1, self.maybe_below) - 1, "fresh", "ready", "inflight", "delayed")
        got += [r for r in earlier if r not in got and not r.scheduled]
        for row in got:
            self.settle(row)
            row.become("acked")
        return len(got)

    def settle(self, row: Row) -> None:
        """Note that the row's owner answered, so it is not late any more."""
        if row.state == "inflight":
            self.late.discard(row.owner)

    def skip(self, first: int, last: int) -> int:
        got = self.pick(first, last, "fresh", "ready", "inflight", "delayed", "held")
        for row in got:
            row.become("acked")
        return len(got)

    def tick(self, now: float) -> bool:
        rows = [r for r in self.rows.values() if r.state in ("inflight", "delayed")]
        due = [row for row in rows if row.deadline <= now]
        counted = self.count_first(due)
        owners = {row.owner for row in due if row.state == "inflight"}
        for owner in owners - self.late:
            self.hung.pop(owner, None)
        for owner, row in counted.items():
            self.hung.setdefault(owner, Hang())
            if not self.hung[owner].counts((self.life, next(i for i, each in self.rows.items() if each is row))):
                row.spare()
        for row in rows:
            row.behind = row.behind and row.owner not in owners - self.late
        self.late |= owners
        for row in due:
            self.return_(row)
        for row in rows:
            row.behind = row.behind or (row.owner in counted)
        return bool(due)

    def touch(self, row: Row, deadline: float) -> None:
        """Renew the row's lease. If its owner hung and got this row after the one that it hung on, it has come to the row, so
        it is not late any more."""
        row.deadline = deadline
        if row.owner in self.hung and not row.behind:
            self.late.discard(row.owner)

    def has_counted(self, owner: object) -> bool:
        """Whether an owner hangs on a message that has counted an attempt already, so that the loss of its connection counts
        none."""
        return owner in self.late and owner in self.hung

    def count_first(self, rows: list[Row]) -> dict[object, Row]:
        """When leases end without an answer, count an attempt only for the first message that its owner still holds; messages
        that the owner got after one that has counted do not count until it settles one. Returns: the counted row by owner."""
        firsts: dict[int, Row] = {}
        held = [row for row in self.rows.values() if row.state == "inflight"]
        for row in sorted(held, key=lambda row: (row.behind and row.owner in self.late, row.turn)):
            firsts.setdefault(id(row.owner), row)
        counted: dict[object, Row] = {}
        for row in rows:
            if row.state == "inflight":
                if firsts[id(row.owner)] is row and not (row.behind and row.owner in self.late):
                    counted[row.owner] = row
                else:
                    row.spare()
        return counted

    def restart(self) -> None:
        self.life += 1
        self.count_first(list(self.rows.values()))
        live = (i for i, r in self.rows.items() if r.state != "acked" and r.attempt)
        top = max(live, default=-1)
        for i, row in self.rows.items():
            if row.state != "acked":
                row.become("ready" if i <= top and (row.attempt or not row.scheduled) else "fresh")
                row.reason, row.spared = "max-attempts", False
