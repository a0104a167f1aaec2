"""Reports of lost connections: one per outage, however many connections the client has."""

import logging

from toymq.options import Connected, Disconnected, Options
from toymq.url import Address
from toymq_py.errors import ToymqError

logger = logging.getLogger("toymq")


class Outages:
    """Tracks the outages of one client: an outage begins with the first lost connection and ends when all connections are
    back."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._down: dict[object, Address] = {}
        self._begun = False

    def up(self, link: object, address: Address) -> None:
        outage = self._down.pop(link, None) is not None
        if self._down:
            return
        if outage:
            logger.info("%s: connected again", address)
        if outage or not self._begun:
            self._begun = True
            self._options.notify(Connected(str(address)))

    def down(self, link: object, address: Address, reason: ToymqError) -> None:
        if not self._down:
            logger.warning("%s: %s; reconnecting", address, reason)
            self._options.notify(Disconnected(str(address), str(reason)))
        self._down[link] = address

    def left(self, link: object) -> None:
        """Note that a connection was closed and is not to come back: no outage waits for it any more."""
        if (address := self._down.get(link)) is not None:
            self.up(link, address)
