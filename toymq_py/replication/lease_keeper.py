"""A node's lease: renewed while the node makes progress.

Contract: replication.md, section 3 ("Keepalive") and section 5. A lease only decides how soon another replica may stand for
election; no rule that protects data depends on it. A node whose event loop or disk hangs must not keep its lease alive
(LavinMQ#2151). A renewal without an answer is sent again until the lease has certainly ended. Belongs to the event loop.
"""

import asyncio
import logging
from collections.abc import Callable

from toymq_py.errors import EtcdError, LeaseLost
from toymq_py.replication.agreement import Agreement

logger = logging.getLogger("toymq_py.replication")

RENEWALS_PER_TTL = 3
RETRY_S = 0.1
"""The delay after a renewal without an answer."""


class LeaseKeeper:
    """Holds one lease at a time."""

    def __init__(self, agreement: Agreement, ttl_s: float, now: Callable[[], float]) -> None:
        """``now``: the event loop's clock, in seconds."""
        self._agreement = agreement
        self._ttl_s = ttl_s
        self._now = now
        self.lease = 0
        """The id of the lease; 0 before ``grant``."""
        self.expires_at = 0.0
        """The time, by the event loop's clock, before which the lease has certainly not expired in etcd."""
        self.on_expiry: Callable[[float], None] = lambda at: None
        """Called with ``expires_at`` when that has changed."""
        self.hindrance: Callable[[], str | None] = lambda: None
        """Why the lease should not be renewed; None when it may. Asked before each renewal."""

    @property
    def remaining_s(self) -> float:
        """For how many seconds the lease certainly lives, unless it is revoked; negative when it may have ended."""
        return self.expires_at - self._now()

    async def grant(self) -> int:
        """Get a new lease, to hold instead of the old one. Returns: its id. Raises: EtcdError."""
        asked_at = self._now()
        self.lease = await self._agreement.grant(self._ttl_s)
        self._set_expiry(asked_at)
        return self.lease

    def _set_expiry(self, asked_at: float) -> None:
        self.expires_at = asked_at + self._ttl_s
        self.on_expiry(self.expires_at)

    async def keep(self) -> None:
        """Renew the lease until it is lost or cancelled. Raises: LeaseLost."""
        pause_s = self._ttl_s / RENEWALS_PER_TTL
        due_at = self.expires_at - self._ttl_s + pause_s
        said: str | None = None
        while True:
            await asyncio.sleep(max(due_at - self._now(), 0.0))
            hindrance = self.hindrance()
            if hindrance is not None:
                if said is None:
                    logger.warning("the lease is not renewed: %s", hindrance)
                said = hindrance
                due_at = self._now() + RETRY_S
                continue
            said = None
            asked_at = self._now()
            try:
                await self._agreement.renew(self.lease)
            except LeaseLost:
                raise
            except EtcdError as error:
                logger.warning("the lease was not renewed, %.1f s are left: %s", self.remaining_s, error)
                due_at = self._now() + RETRY_S
                continue
            self._set_expiry(asked_at)
            due_at = asked_at + pause_s
