"""Shares of the broker's limits: for each token, for each address, and the reserve for admins.

Contract: docs/security.md, "Limits"; ADR 0058. Pure accounting: no socket, no clock. Belongs to the event loop.
"""

from collections.abc import Callable, Collection
from typing import Protocol

from toymq_py.auth.holder import Holder, acting_token
from toymq_py.errors import QueueFull, RequestError, TooManyConnections, TooManyConsumers, TooManyTopics
from toymq_py.metrics import Metrics
from toymq_py.names import DEAD_LETTERS, is_dead_letters
from toymq_py.net.bounded_reads import READ_BYTES, ReadBuffer
from toymq_py.net.open_connections import OpenConnections
from toymq_py.net.peer import network_of

RESERVE_PART = 10
"""The reserve for admins is at most this part of a limit: a broker with ten places keeps one."""
FLOOR_BYTES = 64 * 1024
"""The bytes that every connection may hold whatever others do, so that small messages still pass; less where so many
connections would together hold more than the limit (``Quotas.floor_bytes``)."""
FLOOR_BYTES_MIN = 8 * 1024
HANDSHAKE_BYTES = 64 * 1024
"""The memory that OpenSSL has for a handshake under way, about, with a record that has come in part."""
HELD_OF_MEMORY = 8
"""The part of the memory limit for held bodies, one in so many: copies of a body stand in a batch, in the bytes that are
written, and in the tail of the log."""


class Limits(Protocol):
    """The options of the broker that are limits (``config.options.BrokerOptions``)."""

    @property
    def max_connections(self) -> int: ...
    @property
    def max_topics(self) -> int: ...
    @property
    def max_consumers(self) -> int: ...
    @property
    def max_held_bytes(self) -> int: ...
    @property
    def admin_reserve(self) -> int: ...
    @property
    def address_percent(self) -> int: ...
    @property
    def token_percent(self) -> int: ...


class Seat:
    """One connection's share of the limits, anonymous until ``identify``."""

    __slots__ = ("_evict", "address", "arriving_bytes", "held_bytes", "holder", "left", "quotas", "takes_no_messages", "token",
                 "unread_bytes")  # fmt: skip

    def __init__(self, quotas: "Quotas", address: Holder, evict: Callable[[], None] | None) -> None:
        self.quotas = quotas
        """The limits, which all connections share."""
        self._evict = evict
        self.address = address
        self.token: Holder | None = None
        self.holder = address
        """The owner of the connection: its token, or its address while the token is not known."""
        self.held_bytes = 0
        """The held bytes that count against limits, including the unread and arriving ones."""
        self.arriving_bytes = self.unread_bytes = 0
        """The bytes that count of ``arriving``, and of ``unread``."""
        self.left = False
        self.takes_no_messages = False
        """Whether its client sends no more, and may be gone."""

    def identify(self, name: str, *, admin: bool) -> None:
        """Count the connection for its token. Raises: TooManyConnections; then close it."""
        if self.token is None or self.token.name != name or self.token.limited is admin:
            self.quotas.identify(self, name, admin=admin)

    def busy(self) -> None:
        """Note that a request is being answered: no eviction, unless the connection is anonymous where tokens are needed."""
        self.quotas.busy(self)

    def idle(self) -> None:
        """Note that the connection has no request: it may be evicted."""
        self.quotas.idle(self)

    def begin_handshake(self) -> bool:
        """Count a TLS handshake until ``leave``. Beyond as many as ``max_held_bytes`` has room for, the oldest connection is
        closed: an honest handshake is short. Returns: False while memory is high; then close the connection."""
        return self.quotas.begin_handshake(self)

    @property
    def floor_bytes(self) -> int:
        """Bytes that the connection may always hold, whatever others hold; they do not count."""
        return self.quotas.floor_bytes

    def settle(self, held_bytes: int) -> bool:
        """Set the bytes that the connection holds in addition; up to ``floor_bytes`` do not count.

        Returns: False when a limit is exceeded or memory runs out: then take no more.
        """
        counted = held_bytes if held_bytes > self.quotas.floor_bytes else 0
        return self.quotas.settle(self, counted + self.unread_bytes + self.arriving_bytes)

    def unread(self, unread_bytes: int) -> None:
        """Set the bytes that were written and that the client has not read; up to ``floor_bytes`` do not count."""
        counted = unread_bytes if unread_bytes > self.quotas.floor_bytes else 0
        if counted != self.unread_bytes:
            self.quotas.settle(self, self.held_bytes + counted - self.unread_bytes)
            self.unread_bytes = counted

    def arriving(self, arriving_bytes: int) -> bool:
        """Set the bytes of an incomplete message, beside those of ``settle``; up to ``floor_bytes`` do not count.

        Returns: whether there is room for more of it.
        """
        counted = arriving_bytes if arriving_bytes > self.quotas.floor_bytes else 0
        more, self.arriving_bytes = counted - self.arriving_bytes, counted
        return self.quotas.settle(self, self.held_bytes + more) or not counted or self.may_go_on()

    @property
    def crowded(self) -> bool:
        """Whether the token, the address or the broker holds too much."""
        return not self.quotas.has_room(self)

    @property
    def over_its_share(self) -> bool:
        """Whether the held bytes exceed a limit, which ends when clients read. Unlike ``crowded``, ignores high memory."""
        return not self.quotas.has_share(self)

    def bytes_to_take(self, wanted_bytes: int) -> int:
        """How many bytes of messages to take for the client: at most ``floor_bytes`` while ``crowded``."""
        return min(wanted_bytes, self.quotas.floor_bytes) if self.crowded else wanted_bytes

    def may_go_on(self) -> bool:
        """Whether a body may continue to arrive although the broker holds too much. One connection at a time may, so that
        bodies get stored where many arrive at once: the first that asks, until it holds nothing. None may while memory is
        high, or beyond the share of its token or address."""
        return self.quotas.may_go_on(self)

    def hold(self, more_bytes: int) -> None:
        """Count a further part of a body. Raises: QueueFull; then take no more of it."""
        held_bytes = self.held_bytes + more_bytes
        if not self.quotas.settle(self, held_bytes) and held_bytes > self.quotas.floor_bytes:
            raise self.quotas.too_much(self)

    def check_answer(self, size: int) -> None:
        """Check that an answer of ``size`` bytes may be made beside the bytes that others hold; alone it may exceed a limit.
        High memory alone does not refuse it: operators need answers to find the cause. Raises: QueueFull."""
        if size > self.quotas.floor_bytes and not self.quotas.has_share(self, apart_bytes=self.held_bytes):
            raise self.quotas.too_much(self)

    def grow(self, more_bytes: int) -> None:
        """Count a part of an answer that is made in parts, as ``check_answer``. Raises: QueueFull; then make no more parts."""
        self.quotas.settle(self, self.held_bytes + more_bytes)
        self.check_answer(self.held_bytes)

    def too_much(self) -> QueueFull:
        """The error that says which limit is exceeded."""
        return self.quotas.too_much(self)

    def leave(self) -> None:
        """Give the seat up: the connection is closed or closing. Idempotent."""
        if not self.left:
            self.left = True
            self._evict = None  # it holds the connection, which holds the seat
            self.quotas.leave(self)

    def evict(self) -> None:
        """Close the connection and free its seat."""
        evict = self._evict
        self.leave()
        assert evict is not None
        evict()


class Quotas:
    """The usage of the broker's limits by token and address."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.guarded = False
        """Whether the broker has an auth file: there may be admins, and an anonymous connection has no rights."""
        self.open_connections = OpenConnections()
        """The connections that took a seat, of all listeners."""
        self._limits = limits
        self._metrics = metrics
        self._connections = 0
        self._most_connections = 0
        """Most connections at a time, since this was last asked for."""
        self._identified = 0
        """Connections that a token was counted for. The others give way where tokens are needed."""
        self._this_machine = Holder("this machine", 100, limited=False)
        self._addresses: dict[str, Holder] = {}
        self._tokens: dict[str, Holder] = {}
        self._evictable: dict[Seat, None] = {}  # least recently used first
        self.held_bytes = 0
        """Bytes that all connections hold."""
        self.memory_high = False
        """Whether the process is above its memory limit: publishes are refused."""
        self.memory_max_bytes = 0
        """The memory limit of the process; 0: there is none."""
        self.max_held_bytes = limits.max_held_bytes
        """Most bytes of all connections: ``--max-held-bytes``, or ``HELD_OF_MEMORY`` of the memory limit if that is less."""
        self.floor_bytes = FLOOR_BYTES
        """The bytes that each connection may hold whatever others do: for all connections together at most the limit."""
        self.read_bytes = READ_BYTES
        """The bytes that one read of a connection may bring: for all connections together at most the limit."""
        self.read_buffer = ReadBuffer()
        self._goes_on: Seat | None = None
        self._handshakes: dict[Seat, None] = {}  # under way, the oldest first
        self._topic_makers: dict[str, str] = {}  # topic to token, since the broker started
        self.beside: set[str] = set()
        """Dead-letter topics whose origin exists: the broker creates them, and they do not count (ADR 0074)."""
        self._topics_made: dict[str, int] = {}
        self._consumer_makers: dict[str, dict[str, str]] = {}  # topic to consumer to token

    # -- connections

    @property
    def connections(self) -> int:
        """Open connections of all listeners."""
        return self._connections

    def enter(self, address: str | None, evict: Callable[[], None] | None = None) -> Seat:
        """Admit a connection.

        Args:
            address: the other end's IP address; None for a Unix socket.
            evict: closes the connection; with it the connection may be evicted while it is idle or anonymous.

        Raises: TooManyConnections.
        """
        holder = self._holder_of(address)
        limit = self._limits.max_connections
        share = holder.share(limit)
        if holder.limited and holder.connections >= share and not self._evict_one(of=holder):
            self._metrics.limit_reached("address_connections")
            raise TooManyConnections(f"{share} connections are the limit of {holder.name} (--address-percent)")
        if self._connections >= limit and not self._evict_one():
            self._metrics.limit_reached("connections")
            raise TooManyConnections(f"{limit} connections are the limit (--max-connections)")
        self._connections += 1
        self._set_floor()
        self._most_connections = max(self._most_connections, self._connections)
        holder.connections += 1
        if holder is not self._this_machine:
            self._addresses[holder.name] = holder
        seat = Seat(self, holder, evict)
        if evict is not None:
            self._evictable[seat] = None
        return seat

    def make_room(self) -> bool:
        """Close an evictable connection, as file descriptors have run out. Returns: False when there is none."""
        return self._evict_one()

    def identify(self, seat: Seat, name: str, *, admin: bool) -> None:
        """Count a connection for its token, as ``Seat.identify``."""
        if seat.left:  # its HELLO had arrived when it was evicted: counted now, it would count for ever
            raise TooManyConnections("the connection was closed to make room for another")
        holder = self._tokens.get(name)
        if holder is None or holder.limited is admin:  # new, or an auth file that was read again says otherwise
            holder = Holder(name, self._limits.token_percent, limited=not admin)
        limit = self._limits.max_connections
        if holder.limited:
            share, room = holder.share(limit), limit - self.reserve(limit)
            if holder.connections >= share:
                self._metrics.limit_reached("token_connections")
                raise TooManyConnections(f"{share} connections are the limit of the token {name} (--token-percent)")
            if self._identified - (seat.token is not None) >= room:
                self._metrics.limit_reached("reserve_connections")
                raise TooManyConnections(f"{room} connections are the limit, the others are for admins (--admin-reserve)")
        self._evictable.pop(seat, None)
        held_bytes = seat.held_bytes
        self.settle(seat, 0)
        self._release_token(seat)
        self._tokens[name] = seat.token = seat.holder = holder
        holder.connections += 1
        self._identified += 1
        self.settle(seat, held_bytes)

    def busy(self, seat: Seat) -> None:
        """Note that a connection is being answered, as ``Seat.busy``."""
        if self._evictable.pop(seat, 0) is None and self.guarded:
            self._evictable[seat] = None  # the newest

    def idle(self, seat: Seat) -> None:
        """Note that a connection may be evicted, as ``Seat.idle``."""
        if seat.token is None and not seat.left:
            self._evictable.pop(seat, None)
            self._evictable[seat] = None

    def begin_handshake(self, seat: Seat) -> bool:
        """Count a TLS handshake, as ``Seat.begin_handshake``."""
        if seat.left:
            return False
        if self.memory_high:
            self._metrics.limit_reached("memory")
            return False
        while len(self._handshakes) >= max(self.max_held_bytes // HANDSHAKE_BYTES, 1):
            self._metrics.limit_reached("handshakes")
            next(iter(self._handshakes)).evict()
        self._handshakes[seat] = None
        return True

    def leave(self, seat: Seat) -> None:
        """Give a seat up, as ``Seat.leave``."""
        self._connections -= 1
        self._handshakes.pop(seat, None)
        self._set_floor()
        self.settle(seat, 0)
        self._evictable.pop(seat, None)
        self._release_token(seat)
        address = seat.address
        address.connections -= 1
        if address.unused:
            self._addresses.pop(address.name, None)

    def take_most_connections(self) -> tuple[int, int]:
        """The highest number of connections since the last call, and the current number."""
        most, self._most_connections = self._most_connections, self._connections
        return most, self._connections

    # -- bytes

    def limit_memory(self, max_bytes: int) -> None:
        """Set the limit of the process's memory. Held bytes are limited to a part of it, because memory is checked only a few
        times a second, and more than is free could arrive between two checks."""
        self.memory_max_bytes = max_bytes
        self.max_held_bytes = min(self._limits.max_held_bytes, max_bytes // HELD_OF_MEMORY)
        self._set_floor()

    def _set_floor(self) -> None:
        part = max(FLOOR_BYTES_MIN, self.max_held_bytes // max(self._connections, 1))
        self.floor_bytes, self.read_bytes = min(FLOOR_BYTES, part), min(READ_BYTES, part)
        self.read_buffer.limit(self.read_bytes)

    def settle(self, seat: Seat, held_bytes: int) -> bool:
        """Set the bytes that a connection holds, as ``Seat.settle``, but without a free part."""
        holder, more = seat.holder, -seat.held_bytes if seat.left else held_bytes - seat.held_bytes
        seat.held_bytes += more
        holder.held_bytes += more
        self.held_bytes += more
        return self.has_room(seat)

    def has_room(self, seat: Seat) -> bool:
        """Whether the connection may hold more than ``floor_bytes``."""
        return not self.memory_high and self.has_share(seat)

    def has_share(self, seat: Seat, *, apart_bytes: int = 0) -> bool:
        """Whether held bytes are within the limits. ``apart_bytes``: part of the connection's that does not count here."""
        return self.left_bytes(seat) + apart_bytes >= 0

    def left_bytes(self, seat: Seat) -> int:
        """How many bytes the connection may still take within the limits; negative beyond them. An admin may hold a reserve
        whatever others hold."""
        holder, limit = seat.holder, self.max_held_bytes
        left_bytes = limit - self.held_bytes
        if holder.limited:
            return min(left_bytes, holder.share(limit) - holder.held_bytes)
        return left_bytes if seat.token is None else max(left_bytes, limit // RESERVE_PART - holder.held_bytes)

    @property
    def most_held_bytes(self) -> int:
        """What the token or the address that holds most holds, over all protocols."""
        holders = (self._this_machine, *self._addresses.values(), *self._tokens.values())
        return max(holder.held_bytes for holder in holders)

    def may_go_on(self, seat: Seat) -> bool:
        """Whether a connection's body may continue to arrive, as ``Seat.may_go_on``."""
        if self.memory_high or seat.holder.exceeds(self.max_held_bytes):
            return False
        first = self._goes_on
        if first is None or first.left or not first.held_bytes:
            self._goes_on = first = seat
        return first is seat

    def too_much(self, seat: Seat) -> QueueFull:
        """Count a refusal, and return the error that says which limit is exceeded."""
        holder, limit = seat.holder, self.max_held_bytes
        if self.memory_high and self.has_share(seat):
            return self.memory_refusal()
        if self.held_bytes > limit:
            self._metrics.limit_reached("held_bytes")
            which = "--max-held-bytes" if limit == self._limits.max_held_bytes else "an eighth of --memory-max"
            return QueueFull(f"{limit} bytes of bodies and replies are held, the limit ({which}); try again later")
        self._metrics.limit_reached("holder_held_bytes")
        share = f"{holder.share(limit)} bytes of bodies and replies"
        return QueueFull(f"{holder.name} holds {share}, its share of --max-held-bytes; try again later")

    def memory_refusal(self) -> QueueFull:
        """The error of a publish while memory is high."""
        self._metrics.limit_reached("memory")
        return QueueFull("the broker's memory is at its limit (--memory-max); publish again later")

    # -- topics and consumers

    def admit_topic(self, name: str, present: int) -> None:
        """Count a new topic beside the ``present`` ones. Dead-letter topics with an origin are free. Raises: TooManyTopics."""
        present -= len(self.beside)
        limit, maker = self._limits.max_topics, acting_token.get()
        made = 0 if maker is None else self._topics_made.get(maker.name, 0)
        self._admit("topics", TooManyTopics, limit, "--max-topics", maker, present, made)
        if maker is not None:
            self._topic_makers[name] = maker.name
            self._topics_made[maker.name] = made + 1

    def topic_there(self, name: str, topics: Collection[str]) -> None:
        """Count a topic that was created, by whatever means."""
        origin = name.removesuffix(DEAD_LETTERS)
        letters = origin + DEAD_LETTERS
        if origin in topics and letters in topics and not is_dead_letters(origin):
            self.beside.add(letters)

    def topic_gone(self, name: str) -> None:
        """Stop counting a topic that was deleted. Idempotent."""
        self.beside -= {name, name + DEAD_LETTERS}  # without its origin it counts as any topic
        self._consumer_makers.pop(name, None)
        maker = self._topic_makers.pop(name, None)
        if maker is not None:
            self._topics_made[maker] -= 1
            if not self._topics_made[maker]:
                del self._topics_made[maker]

    def admit_consumer(self, topic: str, name: str, present: Collection[str]) -> None:
        """Count a new consumer of a topic. Raises: TooManyConsumers."""
        if self.memory_high:
            self._metrics.limit_reached("memory")
            raise TooManyConsumers("the broker's memory is at its limit (--memory-max): there is no room for a new consumer")
        limit, maker = self._limits.max_consumers, acting_token.get()
        if maker is None or not maker.limited:
            self._admit(f"consumers of {topic}", TooManyConsumers, limit, "--max-consumers", maker, len(present), 0)
            return
        makers = {consumer: by for consumer, by in self._consumer_makers.get(topic, {}).items() if consumer in present}
        made = sum(by == maker.name for by in makers.values())
        self._admit(f"consumers of {topic}", TooManyConsumers, limit, "--max-consumers", maker, len(present), made)
        self._consumer_makers[topic] = {**makers, name: maker.name}

    def _admit(
        self, what: str, error: type[RequestError], limit: int, option: str, maker: Holder | None, present: int, made: int
    ) -> None:
        kind = what.split(" ", 1)[0]
        if maker is not None and maker.limited:
            share, room = maker.share(limit), limit - self.reserve(limit)
            if made >= share:
                self._metrics.limit_reached(f"token_{kind}")
                raise error(f"{share} {what} are the limit of the token {maker.name} (--token-percent of {option})")
            if room <= present < limit:
                self._metrics.limit_reached(f"reserve_{kind}")
                raise error(f"there are {present} {what}; the last {limit - room} are for admins (--admin-reserve)")
        if present >= limit:
            self._metrics.limit_reached(kind)
            raise error(f"there are {present} {what}, the limit ({option})")

    def reserve(self, limit: int) -> int:
        """Part of a limit that is reserved for admins."""
        return min(self._limits.admin_reserve, limit // RESERVE_PART) if self.guarded else 0

    @property
    def evictable(self) -> int:
        """The number of connections that may be evicted."""
        return len(self._evictable)

    def _evict_one(self, *, of: Holder | None = None) -> bool:
        """Evict the least recently used connection. Returns: False when there is none."""
        for seat in self._evictable:
            if of is None or seat.address is of:
                self._metrics.connections_evicted_total += 1
                seat.evict()
                return True
        return False

    def _release_token(self, seat: Seat) -> None:
        if (token := seat.token) is not None:
            seat.token = None
            seat.holder = seat.address
            token.connections -= 1
            self._identified -= 1
            if token.unused and self._tokens.get(token.name) is token:
                del self._tokens[token.name]

    def _holder_of(self, address: str | None) -> Holder:
        name = network_of(address)
        if name is None:
            return self._this_machine
        return self._addresses.get(name) or Holder(name, self._limits.address_percent)
