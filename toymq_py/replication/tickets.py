"""Tickets of a leader's disk jobs: which of their syncs the followers have acknowledged.

Contract: replication.md, section 4, "Flow"; ADR 0098. A job that syncs the leader's disk gets a ticket. The job's callback on
the event loop is called when every required follower has acknowledged each of the job's syncs. No thread waits. ``run`` and
``expect`` are called on the thread of the job; the other methods belong to the event loop.
"""

import threading
from collections.abc import Callable, Iterable

from toymq_py.callbacks import call_all
from toymq_py.storage.commit.sync_threads import run_guarded


class JobTicket:
    """The syncs of one disk job. The job's thread adds them; the event loop reads them once the job has ended."""

    __slots__ = ("_tickets", "acked", "call")

    def __init__(self, tickets: "Tickets") -> None:
        self._tickets = tickets
        self.acked: dict[int, set[str]] = {}
        """The seq of each sync, and the followers that have acknowledged it."""
        self.call: Callable[[], None] | None = None

    def when_settled(self, call: Callable[[], None]) -> None:
        """Call a function once all required followers have acknowledged the job's syncs (``Ticket.when_settled``)."""
        self.call = call
        self._tickets.wait_for(self)


class Tickets:
    """The unsettled tickets of a leader, and its required followers.

    A ticket is settled when each follower that is required *now* has acknowledged its syncs, even before the follower was
    required. Removing a required follower settles the tickets that wait only for that follower.
    """

    def __init__(self) -> None:
        self._running = threading.local()  # the ticket of the job on this thread
        self._by_seq: dict[int, JobTicket] = {}
        self._waiting: dict[JobTicket, None] = {}  # their jobs have ended; in order
        self._required: frozenset[str] = frozenset()
        self._stopped = False
        self.on_settled: Callable[[], None] | None = None
        """Called when a ticket is settled."""

    @property
    def required(self) -> frozenset[str]:
        """The replica ids of the followers that tickets wait for."""
        return self._required

    @property
    def oldest(self) -> int | None:
        """The lowest unacknowledged seq of the waiting tickets; None without one."""
        return min((min(ticket.acked) for ticket in self._waiting), default=None)

    @property
    def all_settled(self) -> bool:
        """Whether all required followers have acknowledged each shipped sync, including those of running jobs."""
        return not self._by_seq

    # -- on the thread of a job

    def run(self, job: Callable[[], None]) -> JobTicket | None:
        """Run a disk job (a ``RunJob``). Returns: its ticket; None when it synced nothing that is shipped to followers."""
        ticket = self._running.ticket = JobTicket(self)
        try:
            run_guarded(job)
        finally:
            self._running.ticket = None
        return ticket if ticket.acked else None

    def expect(self, seq: int) -> None:
        """Let the job of this thread wait for the sync ``seq``. Called before followers can get it.

        Outside of a job there is no wait: at the start without followers, and at the end without clients.
        """
        ticket: JobTicket | None = getattr(self._running, "ticket", None)
        if ticket is not None:
            ticket.acked[seq] = set()
            self._by_seq[seq] = ticket

    # -- on the loop

    def wait_for(self, ticket: JobTicket) -> None:
        """Call the function set by ``when_settled`` once the ticket is settled; at once if it is."""
        self._waiting[ticket] = None
        self._settle_if_due(ticket)

    def acknowledge(self, follower: str, seq: int) -> None:
        """Note that a follower, required or not, has acknowledged the sync ``seq``."""
        ticket = self._by_seq.get(seq)
        if ticket is not None:
            ticket.acked[seq].add(follower)
            if ticket in self._waiting:
                self._settle_if_due(ticket)

    def acknowledge_through(self, follower: str, seq: int) -> None:
        """Note that a follower has synced all operations up to ``seq``, as at the end of its bulk copy."""
        for each in [number for number in self._by_seq.copy() if number <= seq]:
            self.acknowledge(follower, each)

    def require(self, followers: Iterable[str]) -> None:
        """Replace the followers that tickets wait for; settles tickets that now wait for none.

        A new follower may be elected only after it has acknowledged a BEAT that was sent after this call: until then it may
        lack changes that clients were told of without its acknowledgement.
        """
        self._required = frozenset(followers)
        for ticket in list(self._waiting):
            self._settle_if_due(ticket)

    def stop(self) -> None:
        """Settle no more tickets: this node may no longer answer for its group."""
        self._stopped = True

    def _settle_if_due(self, ticket: JobTicket) -> None:
        if self._stopped or ticket not in self._waiting or not all(self._required <= acked for acked in ticket.acked.values()):
            return
        del self._waiting[ticket]
        for seq in ticket.acked:
            del self._by_seq[seq]
        call, ticket.call = ticket.call, None
        if call is not None:
            call_all([call])
        if self.on_settled is not None:
            self.on_settled()
