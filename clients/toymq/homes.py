"""Remembers which worker of a broker, or group of a cluster, has which topic, as MOVED told it, and the connection to each. ADR
0155, 0189.

Requests about a topic go over the client's main connection until a worker answers, with MOVED, that another worker has the
topic. From then on they use a connection to that worker, made at its first use. A group has several nodes, and MOVED names them
all, the leader first: after a failover the connection finds the next leader by itself. When a connection cannot be made, its
waiting commands return to the main connection, which learns the topic's place anew. Sans-IO, for both clients.
"""

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar
from weakref import ref

from toymq.conversation import Conversation
from toymq.delivery_window import Feed
from toymq.departures import place_of
from toymq.errors import ClientClosed
from toymq.requests import Request
from toymq.route import named_address
from toymq.url import Address
from toymq_py.errors import Moved
from toymq_py.names import DEAD_LETTERS

TOPICS_MAX = 16_384
"""Most topics whose place is kept. Beyond, the oldest is asked for again."""
LINKS_MAX = 64
"""Most workers that are connected to. The MOVED of a broker that names more is raised: so many on one machine are a mistake."""
MOVES_MAX, MOVES_S = 8, 1.0
"""A topic that moves more often within so many seconds goes in circles: its callers get MOVED."""
NODES_MAX = 8
"""Most addresses that are taken from one MOVED."""
GONE = "-"
"""The address in a MOVED of the client's own: the worker cannot be reached."""


class WorkerLink(Protocol):
    """The part of a connection, of either client, that ``Homes`` needs."""

    @property
    def conversation(self) -> Conversation: ...
    @property
    def address(self) -> Address | None:
        """The address where the connection is, or was last."""

    def now(self) -> float: ...


L = TypeVar("L", bound=WorkerLink)


class Homes(Generic[L]):
    """What one client knows of its topics' places, with its connections to other workers."""

    def __init__(self) -> None:
        self._addresses: dict[str, Address] = {}
        self._links: dict[Address, L] = {}
        self._moves: dict[str, tuple[float, int]] = {}
        self._nodes: dict[Address, tuple[Address, ...]] = {}
        self._last: dict[str, Address] = {}  # where a topic was that could not be reached there
        self._places: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._addresses)

    def address(self, topic: str) -> Address | None:
        """The address of the worker that has a topic; None when it is not known: ask over the main connection."""
        return self._addresses.get(topic)

    def place(self, topic: str) -> str:
        """The name of the group or worker that has a topic, from the last MOVED reply; "" when no reply named it."""
        return self._places.get(topic.removesuffix(DEAD_LETTERS), "")

    def nodes(self, address: Address) -> tuple[Address, ...]:
        """All addresses of the worker or group of this address, as one MOVED named them."""
        return self._nodes.get(address, (address,))

    def find(self, topic: str, make: Callable[[Address], L]) -> L | None:
        """The connection to the worker that has a topic, made by ``make`` if there is none yet; None when the main connection
        is to be used."""
        address = self._addresses.get(topic)
        if address is None:
            return None
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = make(address)
        return link

    def goes_on(self, request: Request[Any], link: L) -> bool:
        """Whether a request goes on over another connection: the broker refused it over ``link`` because another worker has its
        topic."""
        answer = request.slot.answer
        if not isinstance(answer, Moved) or not self.learn(request.topic, answer, link):
            return False
        request.slot.again()
        return True

    def learn(self, topic: str, moved: Moved, link: L) -> bool:
        """Learn from a MOVED that came over ``link``. Returns: whether to follow it."""
        origin = topic.removesuffix(DEAD_LETTERS)
        names = (origin, origin + DEAD_LETTERS)
        if moved.address == GONE:
            if (before := self._addresses.get(topic)) is not None:
                self._last.pop(origin, None)
                self._last[origin] = before
            for name in names:
                self._addresses.pop(name, None)
            return True
        addresses = _named(moved, link.address)
        address = addresses[0] if addresses else None
        now = link.now()
        since, moves = self._moves.get(origin, (now, 0))
        if now - since > MOVES_S:
            since, moves = now, 0
        if address is None or moves >= MOVES_MAX or (address not in self._links and len(self._links) >= LINKS_MAX):
            return False
        for name in names:
            self._addresses.pop(name, None)
            self._addresses[name] = address
        self._nodes[address] = addresses
        self._places.pop(origin, None)
        self._places[origin] = place_of(moved)
        again = self._last.pop(origin, None) == address  # it was not reached: no circle, and its link waits before it tries
        self._moves.pop(origin, None)
        self._moves[origin] = since, moves if again else moves + 1
        _bound(self._moves, TOPICS_MAX)
        _bound(self._last, TOPICS_MAX)
        _bound(self._places, TOPICS_MAX)
        _bound(self._addresses, 2 * TOPICS_MAX)
        return True


def _bound(kept: dict[str, Any], most: int) -> None:
    """Forget the oldest entries beyond ``most``."""
    while len(kept) > most:
        del kept[next(iter(kept))]


def _named(moved: Moved, by: Address | None) -> tuple[Address, ...]:
    """The addresses in a MOVED that a client connected to ``by`` can use: over TLS those with ``toymqs://``."""
    if by is None:
        return ()
    words = str(moved).partition(" (")[0].split(" ")
    if by.tls:
        words = [word.removeprefix("toymqs://") for word in words if word.startswith("toymqs://")]
    elif words and named_address(words[0], by) is None:
        return ()
    found = (named_address(word, by) for word in words[:NODES_MAX])
    return tuple(dict.fromkeys(address for address in found if address is not None))


class Follower(Protocol[L]):
    """The part of a client that ``Following`` needs to follow MOVED."""

    _homes: Homes[L]

    def _home(self, topic: str) -> L:
        """The connection for publishes to a topic."""

    def _free_link(self, topic: str) -> L:
        """A connection for a subscription to a topic, without another subscription that overlaps."""


class Following(Generic[L]):
    """Tells a conversation on which connection a refused publish or subscription goes on; implements ``departures.Elsewhere``.
    Its references to client and connection are weak: a client that is dropped is freed at once, with its connections."""

    def __init__(self, client: Follower[L], link: L, on_publishes: Callable[[L], object] = lambda link: None) -> None:
        """``on_publishes``: called with the connection on which publishes go on."""
        self._client, self._link, self._on_publishes = ref(client), ref(link), on_publishes

    def publishes(self, topic: str, moved: Moved) -> Conversation | None:
        client, link = self._client(), self._link()
        if client is None or link is None or not client._homes.learn(topic, moved, link):
            return None
        target = _unless_closed(client._home, topic)
        if target is None or target is link:
            return None
        self._on_publishes(target)
        return target.conversation

    def subscribes(self, feed: Feed, moved: Moved) -> Conversation | None:
        client, link = self._client(), self._link()
        topic = feed.command.topic
        if client is None or link is None or not client._homes.learn(topic, moved, link):
            return None
        feed.place = client._homes.place(topic)
        target = _unless_closed(client._free_link, topic)
        if target is None or target is link:
            return None
        feed.goes_to(target)
        return target.conversation


def _unless_closed(find: Callable[[str], L], topic: str) -> L | None:
    """Return the connection that ``find`` returns; None when the client is being closed and makes no more, in which case the
    caller gets the broker's MOVED as an error."""
    try:
        return find(topic)
    except ClientClosed:
        return None
