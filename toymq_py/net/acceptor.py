"""One listening socket: accepts in bursts. When descriptors run out, it has another connection closed, or backs off.

Contract: delivery.md, "Sessions" (accept loop). Does not know what becomes of a connection.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

logger = logging.getLogger("toymq_py.acceptor")

BACKLOG = 4096  # the default of 100 throttles a burst of connects to 200 a second
ACCEPTS_PER_PASS = 32
"""Most connections accepted in a pass. A session takes about 0.2 ms to begin, so a burst of connects is spread over passes.
With one accept a pass, busy clients could lock out new ones."""
BACK_OFF_MIN_S = 0.01
BACK_OFF_MAX_S = 1.0
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts on one listener, from ``start`` to ``stop``. Belongs to the loop.

    Uses ``add_reader`` and not ``sock_accept``, whose objects for each connection would keep freed memory from being returned
    to the OS (``runtime.heap_trimming``).
    """

    def __init__(
        self, listener: socket.socket, loop: asyncio.AbstractEventLoop, accepted: Callable[[socket.socket], None],
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """
        Args:
            accepted: called with each accepted connection, and owns it. It must not raise.
            make_room: begins to close an open connection, so that one that waits gets its descriptor. Returns: False when it
                found none to close.
        """
        self._listener = listener
        self._loop = loop
        self._accepted = accepted
        self._make_room = make_room
        self._back_off_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._listener.listen(BACKLOG)
        self._resume()

    def stop(self) -> None:
        """Close the listener: the system refuses later connections."""
        if self._timer is not None:
            self._timer.cancel()
        else:
            self._loop.remove_reader(self._listener)
        self._listener.close()

    def _resume(self) -> None:
        self._timer = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            for _ in range(ACCEPTS_PER_PASS):
                connection, _address = self._listener.accept()
                self._accepted(connection)
        except BlockingIOError:
            self._back_off_s = 0.0  # the backlog is empty
        except OSError as error:
            self._back_off(error)

    def _back_off(self, error: OSError) -> None:
        """Log the error once, and accept again after a pause. Without descriptors, ``make_room`` may close a connection; all
        others go on."""
        has_room = False
        if error.errno not in NO_DESCRIPTORS:
            logger.warning("accept failed: %s", error)
        else:
            if not self._back_off_s:
                logger.error("no descriptors left (%s): accepting is paused", error.strerror)
            has_room = self._make_room()
        self._back_off_s = BACK_OFF_MIN_S if has_room else min(max(2 * self._back_off_s, BACK_OFF_MIN_S), BACK_OFF_MAX_S)
        self._loop.remove_reader(self._listener)
        self._timer = self._loop.call_later(self._back_off_s, self._resume)
