"""The set of a listener's open connections: iteration, and the memory of closed ones."""

import sys
import weakref

from toymq_py.net.roster import Roster


class Connection:
    pass


def test_a_walk_keeps_no_connection_alive_that_has_left() -> None:
    """Found with ten thousand connections: a check for dead peers takes three seconds, and kept all connections alive that
    closed meanwhile."""
    roster: Roster[Connection, int] = Roster()
    connections = [Connection() for _ in range(4)]
    for number, connection in enumerate(connections):
        roster.join(connection, number)
    walk = roster.walk()
    assert next(walk) == (connections[3], 3)
    kept = weakref.ref(connections[1])
    assert roster.leave(connections.pop(1)) == 1
    del connection
    assert kept() is None
    roster.join(Connection(), 4)
    assert list(walk) == [(connections[1], 2), (connections[0], 0)]
    assert len(roster) == 4


def test_a_walk_that_is_given_up_is_forgotten() -> None:
    roster: Roster[str, int] = Roster()
    roster.join("a", 1)
    roster.join("b", 2)
    next(roster.walk())
    assert roster._left_in_walks == []
    assert roster.leave("b") == 2
    assert roster.leave("b") is None
    assert list(roster.walk()) == [("a", 1)]


def test_the_memory_of_a_crowd_is_given_back() -> None:
    roster: Roster[int, int] = Roster()
    for number in range(10_000):
        roster.join(number, number)
    most = sys.getsizeof(roster)
    for number in range(9_000):
        roster.leave(number)
    assert sys.getsizeof(roster) < most / 3
    assert list(roster) == list(range(9_000, 10_000))
