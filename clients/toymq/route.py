"""The addresses that a connection tries: those that the application gave, in their order, and a leader that a node named.

Contract: replication.md, section 9; ADR 0105. Sans-IO, for both clients; each connection has its own.

A node of a cluster that does not lead answers ``NOT_LEADER host:port``, or ``-`` while it knows no leader. The named address is
tried next, with the token and TLS of the address that named it, unless the application gave the address with its own. In a
round each address is tried once. A node that names itself as the leader is tried a second time, since it was elected while its
answer was under way.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from toymq.url import Address
from toymq_py.errors import ConfigError, NotLeader
from toymq_py.names import check_host

ELECTION_WAIT_MAX_S = 1.0
"""Longest wait before another round while a node answers that it knows no leader: an election takes about three seconds."""
SILENT_S = 1.0
"""Time for an address that did not answer last time, when another node of the cluster answers: a machine that is down must not
hold up the way to the next leader."""

_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")


class Route:
    """The addresses that one connection tries: ``begin`` a round, then ``next`` until one works or it returns None."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._given = tuple(addresses)
        self._leader: Address | None = None  # that a node named, and that has not failed since
        self._last: set[Address] = set()  # tried last: without an answer, or just lost
        self._left: list[Address] = []  # of this round
        self._tried: set[Address] = set()
        self._named_themselves: set[Address] = set()
        self._heard = False  # in this round, or in the one before: a node that does not lead
        self.of_a_cluster = False
        """Whether a node has ever answered that it does not lead."""

    @property
    def several(self) -> bool:
        """Whether there is more than one address, so that leaving a dead connection early is worthwhile."""
        return len(self._given) > 1 or self._leader is not None

    @property
    def wait_max_s(self) -> float | None:
        """The longest wait before another round, seconds; None: no limit but the backoff's."""
        return ELECTION_WAIT_MAX_S if self._heard else None

    @property
    def exhausted(self) -> bool:
        """Whether every address of the round was tried."""
        return not self._left

    def begin(self) -> None:
        """Begin a round: first the leader, then the given addresses, those that were silent or just lost at the end."""
        self._heard = False
        self._tried.clear()
        self._named_themselves.clear()
        ordered = sorted(self._given, key=lambda address: address in self._last)  # stable
        leader = self._leader
        self._left = ordered if leader is None else [leader, *(address for address in ordered if address != leader)]

    def next(self) -> Address | None:
        """The next address of the round; None at its end."""
        if not self._left:
            return None
        address = self._left.pop(0)
        self._tried.add(address)
        return address

    def timeout_s(self, address: Address, timeout_s: float) -> float:
        """The time limit of an attempt, seconds. ``timeout_s``: the limit when there is no cluster."""
        return min(timeout_s, SILENT_S) if self._heard and address in self._last else timeout_s

    def up(self, address: Address) -> None:
        """Note that a connection to an address was made."""
        self._last.discard(address)
        self._heard = False

    def failed(self, address: Address, error: BaseException) -> None:
        """Note that an attempt to connect failed."""
        if address == self._leader:
            self._leader = None
        if isinstance(error, NotLeader):
            self._last.discard(address)
            self._heard = self.of_a_cluster = True
            itself = named_address(error.leader or "", address) == address
            if itself and address not in self._named_themselves:
                self._named_themselves.add(address)
                self._left.insert(0, address)
                return
            self._named(error.leader, address)
            if (leader := self._leader) is not None and leader not in self._tried:
                self._left = [leader, *(each for each in self._left if each != leader)]

    def silent(self, address: Address) -> None:
        """Note that an attempt got no answer in time; a call of ``failed`` follows."""
        self._last.add(address)

    def lost(self, address: Address, reason: BaseException) -> None:
        """Note that an established connection was lost."""
        self._leader = None
        self._last.add(address)
        if isinstance(reason, NotLeader):
            self._named(reason.leader, address)

    def _named(self, text: str | None, by: Address) -> None:
        """Note the leader that a node has named. None, an invalid address and the node's own address count as no leader."""
        found = named_address(text or "", by)
        if found is not None and (found.host, found.port) != (by.host, by.port):
            given = (each for each in self._given if (each.host, each.port, each.tls) == (found.host, found.port, found.tls))
            self._leader = next(given, found)


def named_address(text: str, by: Address) -> Address | None:
    """Parse the ``host:port`` that a broker has named; it gets the token and the TLS of that broker's own address. None when
    invalid."""
    match = _HOST_PORT.fullmatch(text)
    if by.path is not None or match is None or not 0 < int(match[2]) < 65536:
        return None
    try:
        return replace(by, host=check_host(match[1].strip("[]")), port=int(match[2]))
    except ConfigError:
        return None
