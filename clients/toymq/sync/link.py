"""A connection of the blocking client: it reads, and reconnects, while a call waits.

A signal handler may raise anywhere in here (ADR 0089). A part that must run to its end sets ``_torn`` first. The next call that
finds it set drops the connection, and the reconnect settles what was under way. While ``poll`` waits nothing is torn: most
exceptions come there.
"""

import logging
import math
import os
import select
import socket
import ssl as ssl_module
import time
import weakref
from collections.abc import Callable, Sequence

from toymq import sockets
from toymq.connect_failure import as_failure, connect_failed, is_hopeless, of_a_round
from toymq.delivery_window import Feed
from toymq.errors import ClientClosed, ConnectFailed, RequestTimeout
from toymq.first_connection import FirstConnection
from toymq.options import RECEIVE_BYTES, SILENCE_LOOK_S, Options
from toymq.outages import Outages
from toymq.pending_replies import CallSlot, PingSlot, check_greeting
from toymq.route import Route
from toymq.silence import Silence, judge
from toymq.sync.call_guard import CallGuard
from toymq.sync.guarded_conversation import GuardedConversation
from toymq.url import Address
from toymq.wire_log import log_wait
from toymq_py.errors import ConnectionLost, ProtocolViolation, ToymqError
from toymq_py.protocol import HelloReply, OkReply, Quit

logger = logging.getLogger("toymq")

CLOSED = "this client is closed: connect again"
FORKED = "this client was made before a fork and belongs to the parent: connect again in the child"
ACKS_COALESCED = 1000
ACKS_HELD_S = 0.01
"""The longest time for which acks, fewer than ``ACKS_COALESCED``, wait for the next call that sends."""
WAITED_S = 0.001
"""The duration from which a poll counts as one that had to wait."""
PAUSE_S = 0.01
"""The pause between two calls after which the connection is checked before a request is sent on it."""
READ_AHEAD_S = 0.25
"""The longest such check: more may come than is read. The call itself goes on reading, until its deadline."""
WAIT_MAX_S = 86_400.0
"""The longest wait of ``poll`` or for a connection: they take at most 24.8 days. Longer waits take several."""
QUICK_S = 0.0002
"""When handlers take longer, on average since something was sent, each ack is sent at once: the next one may take minutes, and
there is no loop that would send it meanwhile."""


class BlockingLink:
    """A connection for one thread, which carries the bytes of its conversation. It does nothing while no call waits."""

    def __init__(
        self, options: Options, outages: Outages, siblings: "list[BlockingLink]", guard: CallGuard, home: Address | None = None,
        nodes: Sequence[Address] = (),
    ) -> None:  # fmt: skip
        """Make a link that is not connected: ``open`` connects, or the first ``until``.

        Args:
            siblings: all links of the client; the owner adds this link.
            guard: the client's guard; every method here is part of a call that passed it.
            home: the address of the worker or group to connect to; None: the addresses in ``options``.
            nodes: all addresses of that worker or group.
        """
        self.guard = guard
        self._outages = outages
        self.home = home
        self._route = Route(options.addresses if home is None else nodes or (home,))
        self._siblings = siblings
        self._tried = False
        self.conversation = GuardedConversation(options.producer(), self._drop_socket)
        self.closed = False
        self.forked = False
        """Whether this process is a child of the one that made it."""
        self.options = options
        self._backoff = options.backoff()
        self._socket: socket.socket | None = None
        self._poll = select.poll()
        self.address: Address | None = None
        """The address that it is connected to, or was last."""
        self._out = bytearray()
        self._exchanged_at = self._polled_at = self._drained_at = self._up_since = 0.0
        self._trouble = ""
        self._torn = False
        self._answered_at = self._heard_at = 0.0
        _links.add(self)

    def open(self) -> None:
        """Connect. Raises: ConnectFailed, RequestError, ProtocolViolation."""
        first = FirstConnection(self.options.wait_s, now())
        while True:
            try:
                self._connect_round()
            except ToymqError as error:
                if is_hopeless(error) or not first.goes_on(error, self._route, now()):
                    raise
                delay_s = self._backoff.next_s(self._route.wait_max_s)
                log_wait(delay_s)
                time.sleep(delay_s)
            else:
                return

    def close(self, deadline: float) -> None:
        """Send QUIT and wait until the deadline for the broker to read everything; then close. Later calls do not wait."""
        self.closed = True
        try:
            if self.conversation.online:
                last = CallSlot(Quit(), OkReply)
                self.conversation.send_last(last)
                self.exchange(0.0)
                while self._socket is not None and not last.done and (left := deadline - now()) > 0:
                    self.exchange(left)
        finally:
            self._drop_socket()
            self.conversation.close(ClientClosed(CLOSED))

    def leave_to_parent(self) -> None:
        """Close in the child of a fork, without sending: the connection is the parent's, and must not outlive it."""
        self.closed = self.forked = True
        self.guard.after_fork()
        self._drop_socket()
        self.conversation.close(ClientClosed(FORKED))

    @property
    def descriptor(self) -> int | None:
        """Descriptor of its socket; None without a connection."""
        return None if self._socket is None else self._socket.fileno()

    def until(self, done: Callable[[], bool], deadline: float | None) -> bool:
        """Exchange bytes, reconnecting when needed, until ``done``. Returns: False at the deadline."""
        self._mend_if_torn()
        began = now()
        while not done():
            if self.conversation.is_closed:
                return done()
            left = None if deadline is None else deadline - now()
            if left is not None and left <= 0:
                return False
            if self._socket is None:
                self._connect_again(math.inf if deadline is None else deadline)
            elif self._route.several:
                self.exchange(SILENCE_LOOK_S if left is None else min(left, SILENCE_LOOK_S))
                self._leave_if_silent(began)
            else:
                self.exchange(left)
        return True

    def _leave_if_silent(self, began: float) -> None:
        """Drop a connection that owes an answer and is silent for ``SILENT_S``; on one that owes none, send a PING.

        ``began``: when the present call began to wait; earlier silence does not count.
        """
        if self._socket is None or not self.conversation.online:
            return
        at = now()
        silent_s = at - max(began, self._up_since, self._heard_at)
        silence = judge(self.conversation, silent_s, at, self.options.timeout_s)
        if silence is Silence.LEAVE:
            self._torn = True
            self._lose(ConnectionLost(f"no answer came for {silent_s:.0f} s"))
            self._torn = False
        elif silence is Silence.ASK:
            self.conversation.send_now(PingSlot(at + self.options.timeout_s))

    def ask(self, slot: CallSlot, extra_s: float = 0.0) -> None:
        """Send a request and wait for its answer. The reply to an interrupted request is dropped. Raises: RequestTimeout."""
        self.ask_all([slot], extra_s)

    def ask_all(self, slots: Sequence[CallSlot], extra_s: float = 0.0) -> None:
        """Send requests and wait for all of their answers. Raises: RequestTimeout."""
        deadline = slots[0].deadline  # of one that goes on here after another connection
        if deadline is None:
            deadline = now() + self.options.timeout_s + extra_s
        for slot in slots:
            slot.deadline = deadline
        if not self._answered(slots, deadline):
            raise self.overdue(slots[-1].awaited, extra_s)

    def try_all(self, slots: Sequence[CallSlot], deadline: float | None) -> bool:
        """Send requests and wait for all answers, until the deadline or for ``timeout_s``. Returns: False when some are
        missing."""
        latest = now() + self.options.timeout_s
        if self._answered(slots, latest if deadline is None else min(latest, deadline)):
            return True
        if now() >= latest:
            self.overdue(slots[-1].awaited)
        return False

    def _answered(self, slots: Sequence[CallSlot], deadline: float) -> bool:
        self.read_ahead(deadline)
        answered = False
        try:
            for slot in slots:
                self.conversation.send(slot)
            answered = self.until(lambda: all(slot.done for slot in slots), deadline)
        finally:
            if not answered:
                for slot in slots:
                    slot.abandon()
        return answered

    def ack_soon(self, feed: Feed, topic: str, msg_id: int) -> None:
        """Ack with the next bytes that are sent; at once when handlers are slow, no other delivery waits, or a thousand acks
        wait."""
        at_once = self.conversation.ack(feed, topic, msg_id) or not (feed.open or feed.arrived)
        unsent = len(feed.acks_of(topic).ids)
        if at_once or now() - self._exchanged_at > min(QUICK_S * unsent, ACKS_HELD_S) or unsent >= ACKS_COALESCED:
            self.exchange(0.0)

    def ack_synced(self, feed: Feed, topic: str, msg_id: int) -> None:
        """Ack, and wait until the ack is on stable storage, also when the feed moves to another connection meanwhile. Raises:
        RequestError, ClientClosed, RequestTimeout."""
        told: list[ToymqError | None] = []
        link, deadline = self, now() + self.options.timeout_s
        link.conversation.ack_synced(feed, topic, msg_id, told.append)
        while not told:

            def news(link: BlockingLink = link) -> bool:
                return bool(told) or feed.link(link) is not link

            if not link.until(news, deadline):
                raise link.overdue(f"the synced ack of {topic} {msg_id}")
            link = feed.link(link)
        if told[0] is not None:
            raise told[0]

    def now(self) -> float:
        """The link's clock, in seconds."""
        return now()

    def is_idle(self) -> bool:
        """Whether nothing is left to send or to receive."""
        return self.conversation.idle

    def overdue(self, awaited: str, extra_s: float = 0.0) -> RequestTimeout:
        """Make the error of an ``until`` that returned False; drop a connection that owes an answer: another may work."""
        trouble = self.trouble
        silent_s = now() - max(self._answered_at, self._up_since)
        if self._socket is not None and self.conversation.unanswered_count and silent_s >= self.options.timeout_s:
            self._torn = True
            self._lose(ConnectionLost(f"no answer came for {self.options.timeout_s:g} s"))
            self._torn = False
        self.conversation.drop_done()
        return RequestTimeout(f"no answer within {self.options.timeout_s + extra_s:g} s: waited for {awaited}{trouble}")

    @property
    def trouble(self) -> str:
        """Why there is no connection, as the end of an error's text; "" when there is one."""
        return "" if self.conversation.online else self._trouble

    def _connect_again(self, deadline: float) -> None:
        if self._tried:  # each call tries once more, however short it is: it waits half of its time at most
            left_s = max(deadline - now(), 0.0)
            delay_s = min(self._backoff.next_s(self._route.wait_max_s), max(left_s / 2, self.options.backoff_min_s), left_s)
            log_wait(delay_s)
            time.sleep(delay_s)
        self._try_to_connect(deadline)

    def _try_to_connect(self, deadline: float) -> None:
        if now() >= deadline:
            return
        try:
            self._connect_round(deadline)
        except ToymqError as error:
            logger.debug("no connection: %s", error)
            self._trouble = f" ({error})"
            if self.home is not None:
                self._outages.left(self)
                self.conversation.hand_back()
            if is_hopeless(error):
                logger.error("this client gives up: %s", error)  # noqa: TRY400 (the caller gets it)
                self.conversation.close(error)

    def _connect_round(self, deadline: float = math.inf) -> None:
        """Try each address once, until the deadline. Raises: ConnectFailed, RequestError, ProtocolViolation: the last error."""
        self._tried = True
        failures: list[ToymqError] = []
        self._route.begin()
        while (not failures or now() < deadline) and (address := self._route.next()) is not None:
            try:
                self._connect_to(address, deadline)
            except ToymqError as error:
                self._route.failed(address, error)
                failures.append(as_failure(address, error))
            else:
                self._route.up(address)
                return
        try:
            raise of_a_round(failures)
        finally:
            del failures  # else this frame and the errors hold each other

    def _connect_to(self, address: Address, deadline: float) -> None:
        timeout_s = min(self._route.timeout_s(address, self.options.connect_timeout_s), max(deadline - now(), 0.001))
        deadline = now() + timeout_s
        answers: list[HelloReply | ToymqError] = []
        self._torn = True
        try:
            self.options.check_not_lost()
            if address.path is not None:
                connection = sockets.connect_unix(address.path)
            else:
                connection = socket.create_connection((address.host, address.port), min(timeout_s, WAIT_MAX_S))
            self._socket = connection
            sockets.set_up(connection, quick=self._route.several)
            tls = self.options.tls_of(address)
            if tls is not None:
                connection.settimeout(min(max(deadline - now(), 0.001), WAIT_MAX_S))
                self._socket = connection = tls.wrap_socket(connection, server_hostname=address.host)
            connection.setblocking(False)
            self.address = address
            self._poll.register(connection, select.POLLIN)
            self.conversation.connected(self.options.hello(address), answers.append)
            while not answers and self._socket is not None and (left := deadline - now()) > 0:
                self._exchange(self._socket, left)
            if not answers:
                self._route.silent(address)
                answers.append(ConnectFailed(f"no answer from {address} within {timeout_s:g} s"))
            check_greeting(answers[0])
        except BaseException as error:
            self._drop_socket()
            self.conversation.lost(ConnectionLost("the connection was not made"))
            self._torn = False
            if isinstance(error, OSError) and not isinstance(error, ToymqError) and not sockets.is_time_limit(error):
                if isinstance(error, TimeoutError):
                    self._route.silent(address)
                    raise ConnectFailed(f"no answer from {address} within {timeout_s:g} s") from error
                raise connect_failed(address, error) from error
            raise
        self._torn = False
        self._up_since = self._drained_at = now()
        for link in self._siblings:
            link.check()
        self._outages.up(self, address)

    def send_off(self, deadline: float) -> None:
        """Connect if need be and send the output: an ack must not wait for a later call on this connection."""
        self._mend_if_torn()
        if self._socket is None and not self.conversation.is_closed and not (self._tried and self.conversation.idle):
            self._try_to_connect(deadline)
        self.exchange(0.0)

    def exchange(self, wait_s: float | None) -> None:
        """Wait up to ``wait_s`` (a day at most) until the socket can be read or written; send and receive what is possible."""
        self._mend_if_torn()
        if self._socket is not None:
            self._exchange(self._socket, wait_s)

    def _exchange(self, connection: socket.socket, wait_s: float | None) -> None:
        outer = self._torn  # set while it connects
        self._exchanged_at = now()
        self._torn = True
        self._out += self.conversation.take_output()
        if self._out and not self._write(connection):
            self._torn = outer
            return
        self._poll.modify(connection, select.POLLIN | (select.POLLOUT if self._out else 0))
        pending = isinstance(connection, ssl_module.SSLSocket) and connection.pending()
        wait_ms = 0 if pending else None if wait_s is None else math.ceil(min(wait_s, WAIT_MAX_S) * 1000)
        self._torn = outer
        events = self._poll.poll(wait_ms)
        self._torn = True
        self._polled_at = polled_at = now()
        # What comes after a wait is new; what is there at once may be there since the socket was last empty.
        self.conversation.received_at = polled_at if polled_at - self._exchanged_at > WAITED_S else self._drained_at
        if not events:
            self._drained_at = polled_at
        for _, event in events:
            if self._socket is not connection:
                break  # a signal handler used the client meanwhile
            if event & ~select.POLLOUT:
                self._read(connection)
            elif self._out:
                self._write(connection)
        if pending and self._socket is connection:
            self._read(connection)
        self._torn = outer

    def _mend_if_torn(self) -> None:
        """Drop a connection whose use an exception interrupted; the next one is made at once."""
        conversation = self.conversation
        if self._torn or conversation.torn:
            self._torn = True
            self._drop_socket()
            if conversation.torn:
                conversation.mend()
            conversation.lost(ConnectionLost("the outcome is unknown: an exception interrupted the use of the connection"))
            self._tried = False
            self._torn = False

    def read_ahead(self, deadline: float = math.inf) -> None:
        """Read the bytes that came while no call waited. If they end with the loss of the connection, the caller's request goes
        over the next one; sent over the lost one, it would fail with an unknown outcome, though no broker can have read it."""
        if now() - self._polled_at > PAUSE_S:
            self._mend_if_torn()
            self._read_what_came(deadline)

    def _read_what_came(self, deadline: float = math.inf) -> None:
        deadline = min(deadline, now() + READ_AHEAD_S)
        while self.conversation.online and self._socket is not None and self._poll.poll(0) and now() < deadline:
            self.exchange(0.0)

    def check(self) -> None:
        """Notice a connection that was lost as part of the outage that is about to end. Its next use reconnects."""
        self._read_what_came()
        if self._socket is None:
            self._outages.left(self)

    def _write(self, connection: socket.socket) -> bool:
        """Send buffered bytes. Returns: False when the connection was lost."""
        try:
            sent = connection.send(self._out)
        except (BlockingIOError, InterruptedError, ssl_module.SSLWantReadError, ssl_module.SSLWantWriteError):
            return True
        except OSError as error:
            if sockets.is_time_limit(error):
                raise
            try:  # the broker's last words may still be readable
                while data := connection.recv(RECEIVE_BYTES):
                    self.conversation.receive(data)
            except ProtocolViolation:
                pass
            except OSError as last:
                if sockets.is_time_limit(last):
                    raise
            self._lose(ConnectionLost(f"the connection was lost: {error.strerror or error}"))
            return False
        del self._out[:sent]
        return True

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError, ssl_module.SSLWantReadError, ssl_module.SSLWantWriteError):
            return
        except OSError as error:
            if sockets.is_time_limit(error):
                raise
            self._lose(ConnectionLost(f"the connection was lost: {error.strerror or error}"))
            return
        if not data:
            self._lose(ConnectionLost("the broker closed the connection"))
            return
        if len(data) < RECEIVE_BYTES and not isinstance(connection, ssl_module.SSLSocket):  # that gives a record at a time
            self._drained_at = self._polled_at
        self._heard_at = self._polled_at
        progress = self.conversation.progress
        try:
            self.conversation.receive(data)
        except ProtocolViolation as error:
            self._lose(error)
        if self.conversation.progress != progress:
            self._answered_at = self._polled_at

    def _lose(self, reason: ToymqError) -> None:
        was_up = self.conversation.online
        if self.conversation.progress or now() - self._up_since > self.options.backoff_max_s:
            self._backoff.reset()  # not where each connection breaks at once
        self._drop_socket()
        reason = self.conversation.farewell or reason
        if was_up and self.address is not None:
            self._route.lost(self.address, reason)
        self._trouble = f" (the connection to {self.address} was lost: {reason})"
        error = reason if isinstance(reason, ProtocolViolation) else ConnectionLost(f"the outcome is unknown: {reason}")
        error.__cause__ = None if error is reason else reason
        self.conversation.lost(error)
        if was_up and not self.closed and self.address is not None:
            self._outages.down(self, self.address, reason)

    def _drop_socket(self) -> None:
        outer, self._torn = self._torn, True
        self._out.clear()
        if self._socket is not None:
            self._poll = select.poll()
            self._socket.close()
            self._socket = None
        self._torn = outer


def now() -> float:
    """Seconds of a monotonic clock."""
    return time.perf_counter()


_links: "weakref.WeakSet[BlockingLink]" = weakref.WeakSet()


def _leave_to_parent() -> None:
    for link in list(_links):
        if not link.closed:
            link.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
