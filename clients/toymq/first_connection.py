"""Decides how long a client tries its first connection. Sans-IO, for both clients; ADR 0257.

Without ``wait_s`` each address is tried once, so that a wrong address is reported at once. A cluster node that answers that it
does not lead is not a wrong address: another one leads within seconds, so the client goes on trying.
"""

import logging

from toymq.route import Route
from toymq_py.errors import ToymqError

logger = logging.getLogger("toymq")

FAILOVER_S = 10.0
"""Time for another node to lead: a lease of three seconds, its end at etcd, and the start of a broker. Of a thousand failovers
on a busy machine 99 in a hundred took at most 6.4 s (docs/clusters.md)."""


class FirstConnection:
    """The attempts of one client to connect for the first time. ``began``: when the first attempt began, in seconds of any
    clock."""

    def __init__(self, wait_s: float | None, began: float) -> None:
        self._wait_s = wait_s
        self._began = began
        self._said = False

    def goes_on(self, error: ToymqError, route: Route, now: float) -> bool:
        """Whether the client tries all addresses again after a round that ended in ``error``."""
        if self._wait_s is not None:
            return now - self._began < self._wait_s
        if not route.of_a_cluster or now - self._began >= FAILOVER_S:
            return False
        if not self._said:
            self._said = True
            logger.warning("waiting up to %g s for a node that leads: %s", FAILOVER_S, error)
        return True
