"""What one token and one address may hold, and what is left for admins."""

from dataclasses import dataclass

import pytest

from toymq_py.auth.holder import Holder, acting_token
from toymq_py.auth.quotas import FLOOR_BYTES, FLOOR_BYTES_MIN, Quotas, Seat
from toymq_py.errors import QueueFull, TooManyConnections, TooManyConsumers, TooManyTopics
from toymq_py.metrics import Metrics
from toymq_py.net.bounded_reads import READ_BYTES


@dataclass
class Limits:
    max_connections: int = 20
    max_topics: int = 20
    max_consumers: int = 20
    max_held_bytes: int = 1 << 20
    admin_reserve: int = 2
    address_percent: int = 50
    token_percent: int = 50


class Rig:
    def __init__(self, *, guarded: bool = True, **limits: int) -> None:
        self.metrics = Metrics()
        self.quotas = Quotas(Limits(**limits), self.metrics)
        self.quotas.guarded = guarded
        self.evicted: list[str] = []

    def reached(self) -> dict[str, int]:
        return {limit: count for limit, count in self.metrics.limits_reached.items() if count}

    def enter(self, name: str, address: str | None = "127.0.0.1") -> Seat:
        return self.quotas.enter(address, lambda: self.evicted.append(name))

    def admitted(self, name: str, token: str, *, admin: bool = False) -> Seat:
        seat = self.enter(name)
        seat.identify(token, admin=admin)
        return seat


def test_anonymous_connections_lock_nobody_out() -> None:
    rig = Rig()
    for n in range(100):
        rig.enter(f"probe {n}")
    assert len(rig.evicted) == 80
    rig.admitted("an admin", "ops", admin=True)
    assert rig.evicted[-1] == "probe 80", "the oldest gives way"
    for n in range(30):
        rig.enter(f"probe {n}")
    assert "an admin" not in rig.evicted
    assert rig.metrics.connections_evicted_total == len(rig.evicted) == 111


def test_without_descriptors_the_oldest_anonymous_connection_makes_room() -> None:
    rig = Rig()
    rig.admitted("an app", "app")
    for name in ("first", "second"):
        rig.enter(name)
    assert [rig.quotas.make_room() for _ in range(3)] == [True, True, False]
    assert rig.evicted == ["first", "second"]
    assert rig.quotas.connections == 1


def test_a_token_that_holds_its_share_gets_no_more() -> None:
    rig = Rig()
    held = [rig.admitted("x", "app") for _ in range(10)]
    one_more = rig.enter("x")
    with pytest.raises(TooManyConnections, match=r"10 connections are the limit of the token app \(--token-percent\)"):
        one_more.identify("app", admin=False)
    one_more.leave()
    held.pop().leave()
    rig.admitted("x", "app")
    assert not rig.evicted
    assert rig.reached() == {"token_connections": 1}


def test_a_connection_is_its_address_until_its_token_is_known() -> None:
    rig = Rig()
    one, other = rig.enter("x", "192.0.2.1"), rig.enter("x", "192.0.2.1")
    assert one.holder is other.holder
    for seat in (one, other, admitted := rig.enter("x", "192.0.2.2")):
        seat.identify("app", admin=False)
    assert one.holder is other.holder is admitted.holder is one.token
    one.identify("ops", admin=True)
    assert one.holder is not other.holder
    one.leave()
    assert one.holder is one.address, "it counts for no token any more"


def test_what_is_left_at_last_is_for_admins() -> None:
    rig = Rig()
    for token in ("a", "b"):
        for _ in range(9):
            rig.admitted("x", token)
    last = rig.enter("late")
    with pytest.raises(TooManyConnections, match=r"18 connections .* for admins \(--admin-reserve\)"):
        last.identify("c", admin=False)
    last.leave()
    admins = [rig.admitted("x", "ops", admin=True) for _ in range(2)]
    with pytest.raises(TooManyConnections, match=r"20 connections are the limit \(--max-connections\)"):
        rig.enter("one too many")
    admins[0].leave()
    admins[0].leave()
    rig.admitted("x", "ops", admin=True)
    assert rig.reached() == {"reserve_connections": 1, "connections": 1}


def test_refused_connections_that_linger_do_not_make_room_in_the_reserve() -> None:
    """Found: each refused connection that was not closed yet made way for one more, and two tokens took all connections but
    one."""
    rig = Rig()
    refused = 0
    for token in ("a", "b", "c"):
        for _ in range(12):
            try:
                rig.admitted("lingers", token)
            except TooManyConnections:
                refused += 1
    assert refused == 36 - 18
    for _ in range(2):
        rig.admitted("an admin", "ops", admin=True)


def test_an_evicted_connection_whose_token_has_arrived_does_not_count() -> None:
    """It counted for ever: an address that opened connections as fast as it could shut all tokens out but admins."""
    rig = Rig()
    for _ in range(50):
        seat = rig.enter("far", "198.51.100.7")
        seat.evict()
        with pytest.raises(TooManyConnections, match="closed to make room for another"):
            seat.identify("ops", admin=True)
        assert not seat.begin_handshake()
        assert seat.token is None
    assert rig.quotas.connections == 0
    rig.admitted("near", "app")
    assert rig.reached() == {}


def test_an_address_that_holds_its_share_displaces_only_itself() -> None:
    rig = Rig(guarded=False)
    for n in range(12):
        rig.enter(f"far {n}", "198.51.100.7")
    rig.enter("near", "198.51.100.8")
    assert rig.evicted == ["far 0", "far 1"]
    busy = [rig.quotas.enter("203.0.113.1") for _ in range(10)]
    with pytest.raises(TooManyConnections, match=r"10 connections are the limit of 203.0.113.1 \(--address-percent\)"):
        rig.enter("x", "203.0.113.1")
    for seat in busy:
        seat.leave()
    rig.enter("x", "203.0.113.1")


def test_this_machine_has_no_share() -> None:
    rig = Rig(guarded=False, address_percent=1)
    seats = [rig.quotas.enter(address) for address in ("127.0.0.1", "::1", None, "127.1.2.3", "::ffff:127.0.0.1") * 4]
    assert len(seats) == 20
    with pytest.raises(TooManyConnections):
        rig.quotas.enter("127.0.0.1")


def test_without_tokens_only_idle_connections_give_way() -> None:
    rig = Rig(guarded=False, max_connections=2)
    first, second = rig.enter("first"), rig.enter("second")
    first.busy()
    second.busy()
    with pytest.raises(TooManyConnections):
        rig.enter("third")
    second.idle()
    rig.enter("third")
    assert rig.evicted == ["second"]
    second.idle()  # its response was on the way
    first.leave()
    rig.enter("fourth")
    assert rig.evicted == ["second"]


def test_where_tokens_are_asked_for_the_anonymous_give_way_busy_or_not() -> None:
    """An anonymous client that reads a page slowly counts as busy, and must not keep an admin out."""
    rig = Rig(max_connections=2)
    first, second = rig.enter("first"), rig.enter("second")
    second.busy()
    first.busy()
    rig.admitted("admin", "ops", admin=True)
    assert rig.evicted == ["second"]


def test_addresses_that_have_left_are_forgotten() -> None:
    rig = Rig()
    for n in range(256):
        seat = rig.enter("x", f"198.51.100.{n}")
        seat.identify(f"token{n}", admin=False)
        seat.leave()
    assert not rig.quotas._addresses
    assert not rig.quotas._tokens


def test_a_token_makes_its_share_of_topics_and_what_is_left_at_last_is_for_admins() -> None:
    rig = Rig()
    made: list[str] = []

    def make(token: Holder | None, count: int = 1) -> None:
        whose = acting_token.set(token)
        try:
            for _ in range(count):
                name = f"t{len(made)}"
                rig.quotas.admit_topic(name, len(made))
                made.append(name)
        finally:
            acting_token.reset(whose)

    seats = [rig.admitted("x", name) for name in ("a", "b")]
    admin = rig.admitted("x", "ops", admin=True)
    make(seats[0].token, 10)
    with pytest.raises(TooManyTopics, match=r"10 topics are the limit of the token a \(--token-percent of --max-topics\)"):
        make(seats[0].token)
    seats[0].leave()
    with pytest.raises(TooManyTopics):
        make(rig.admitted("x", "a").token)
    make(seats[1].token, 8)
    with pytest.raises(TooManyTopics, match=r"there are 18 topics; the last 2 are for admins \(--admin-reserve\)"):
        make(seats[1].token)
    make(admin.token, 2)
    for token in (admin.token, None):
        with pytest.raises(TooManyTopics, match=r"there are 20 topics, the limit \(--max-topics\)"):
            make(token)
    for name in made[:10]:
        rig.quotas.topic_gone(name)
        rig.quotas.topic_gone(name)
    del made[:3]
    make(rig.admitted("x", "a").token)
    assert rig.reached() == {"token_topics": 2, "reserve_topics": 1, "topics": 2}


def test_a_token_makes_its_share_of_a_topics_consumers() -> None:
    rig = Rig(max_consumers=10)
    consumers: dict[str, dict[str, None]] = {"t": {}, "u": {}}

    def make(token: Holder | None, topic: str, name: str) -> None:
        whose = acting_token.set(token)
        try:
            rig.quotas.admit_consumer(topic, name, consumers[topic])
            consumers[topic][name] = None
        finally:
            acting_token.reset(whose)

    app, other = (rig.admitted("x", name).token for name in ("app", "other"))
    for n in range(5):
        make(app, "t", f"c{n}")
        make(app, "u", f"c{n}")
    with pytest.raises(TooManyConsumers, match=r"5 consumers of t are the limit of the token app \(--token-percent"):
        make(app, "t", "c5")
    del consumers["t"]["c0"]
    make(app, "t", "c5")
    for n in range(4):
        make(other, "t", f"d{n}")
    with pytest.raises(TooManyConsumers, match=r"there are 9 consumers of t; the last 1 are for admins"):
        make(other, "t", "d4")
    make(None, "t", "ours")
    with pytest.raises(TooManyConsumers, match=r"there are 10 consumers of t, the limit \(--max-consumers\)"):
        make(None, "t", "one more")


MIB = 1 << 20


def test_bytes_count_for_the_token_and_for_all() -> None:
    rig = Rig(max_held_bytes=10 * MIB)
    app, more, other = rig.admitted("x", "app"), rig.admitted("x", "app"), rig.admitted("x", "other")
    admin = rig.admitted("x", "ops", admin=True)
    assert app.settle(3 * MIB)
    assert more.settle(2 * MIB)
    assert not more.settle(2 * MIB + 1), "half of all is a token's share"
    assert str(more.too_much()).startswith(f"app holds {5 * MIB} bytes of bodies and replies, its share of --max-held-bytes")
    assert other.settle(4 * MIB), "others have theirs"
    assert not admin.settle(2 * MIB), "all together is too much for an admin, too"
    assert str(admin.too_much()).startswith(f"{10 * MIB} bytes of bodies and replies are held, the limit (--max-held-bytes)")
    more.leave()
    assert admin.settle(2 * MIB)
    app.settle(0)
    for seat in (app, other, admin):
        seat.leave()
    assert rig.quotas.held_bytes == 0
    assert rig.reached() == {"held_bytes": 1, "holder_held_bytes": 1}


def test_little_is_not_counted_and_goes_on_whatever_others_hold() -> None:
    rig = Rig(guarded=False, max_held_bytes=MIB)
    greedy, small = rig.quotas.enter(None), rig.quotas.enter(None)
    assert not greedy.settle(2 * MIB)
    for _ in range(4):
        small.hold(FLOOR_BYTES // 4)
    with pytest.raises(QueueFull):
        small.hold(1)
    assert not small.settle(FLOOR_BYTES)
    assert small.held_bytes == 0


def test_what_was_held_before_the_token_was_known_moves_with_it() -> None:
    rig = Rig(max_held_bytes=MIB)
    seat = rig.enter("x", "198.51.100.7")
    seat.hold(400_000)
    seat.identify("app", admin=False)
    assert seat.address.held_bytes == 0
    assert seat.token is not None
    assert seat.token.held_bytes == 400_000
    seat.leave()
    assert not rig.quotas._addresses
    assert not rig.quotas._tokens


def test_a_small_memory_limits_what_is_held() -> None:
    """Found: the limit was 512 MiB in a container of 200 MiB, and a hundred clients took all of it between two checks of the
    memory."""
    rig = Rig(max_held_bytes=8 * MIB)
    rig.quotas.limit_memory(1 << 40)
    seat = rig.enter("x")
    seat.hold(2 * MIB)
    rig.quotas.limit_memory(8 * MIB)
    with pytest.raises(QueueFull, match=r"1048576 bytes .* are held, the limit \(an eighth of --memory-max\)"):
        seat.hold(1)
    rig.quotas.limit_memory(1 << 40)
    seat.hold(1)


def test_while_memory_is_high_no_more_is_taken() -> None:
    rig = Rig()
    seat = rig.enter("x")
    rig.quotas.memory_high = True
    with pytest.raises(QueueFull, match=r"memory is at its limit \(--memory-max\)"):
        seat.hold(FLOOR_BYTES + 1)
    rig.quotas.memory_high = False
    seat.hold(1)


def test_unread_bytes_count_beside_the_held_ones() -> None:
    rig = Rig()
    reader, other = rig.admitted("r", "app"), rig.admitted("o", "app")
    reader.settle(100_000)
    reader.unread(FLOOR_BYTES)
    assert rig.quotas.held_bytes == 100_000, "a little is free"
    reader.unread(500_000)
    assert rig.quotas.held_bytes == 600_000
    assert other.over_its_share, "the token has half of a megabyte"
    assert not rig.admitted("x", "another app").over_its_share
    reader.settle(0)
    reader.settle(0)
    assert rig.quotas.held_bytes == 500_000
    reader.unread(200_000)
    assert not other.over_its_share
    rig.quotas.memory_high = True
    assert other.crowded
    assert not other.over_its_share, "it ends only when clients read"
    reader.leave()
    assert rig.quotas.held_bytes == 0


def test_one_connection_at_a_time_goes_on_above_the_limit() -> None:
    rig = Rig(max_held_bytes=1 << 20)
    first, second = rig.enter("first"), rig.enter("second")
    for seat in (first, second):
        seat.settle(1 << 20)
    assert first.may_go_on()
    assert not second.may_go_on()
    first.settle(0)
    assert second.may_go_on(), "the first has stored its own"
    second.leave()
    assert first.settle(FLOOR_BYTES + 1)
    first.settle(2 << 20)
    assert first.may_go_on(), "the second is gone"
    rig.quotas.memory_high = True
    assert not first.may_go_on()


def test_an_admin_may_hold_a_reserve_whatever_others_hold() -> None:
    """Found: while two tokens held more than the limit, an admin could not learn whose connections to close."""
    rig = Rig()
    rig.admitted("x", "app").settle(2 * MIB)
    admin = rig.admitted("an admin", "ops", admin=True)
    assert admin.settle(MIB // 10)
    assert not admin.settle(MIB // 10 + 1)
    rig.quotas.memory_high = True
    assert not admin.settle(0)


def test_beyond_the_share_of_a_token_none_goes_on() -> None:
    rig = Rig(max_held_bytes=1 << 20)
    seat = rig.admitted("x", "app")
    seat.settle((1 << 19) + 1)
    assert not seat.may_go_on()


def test_no_consumer_is_made_while_memory_is_high() -> None:
    """Found: a pattern that made a new consumer at each of 2,000 topics, a hundred times, used so much memory that the kernel
    killed the broker."""
    rig = Rig()
    rig.quotas.memory_high = True
    with pytest.raises(TooManyConsumers, match="memory is at its limit"):
        rig.quotas.admit_consumer("t", "c", ())
    assert rig.reached() == {"memory": 1}
    rig.quotas.memory_high = False
    rig.quotas.admit_consumer("t", "c", ())


def test_an_answer_is_made_beside_what_others_hold() -> None:
    """An answer is allowed whatever others hold: otherwise one that is larger than the limit could never be made, and several
    at a time would all be refused."""
    quotas = Rig(max_held_bytes=1_000_000).quotas
    one, other = quotas.enter(None), quotas.enter(None)
    one.grow(2_000_000)
    other.grow(FLOOR_BYTES)
    with pytest.raises(QueueFull, match="--max-held-bytes"):
        other.grow(1)
    one.grow(1)
    other.check_answer(FLOOR_BYTES)
    with pytest.raises(QueueFull):
        other.check_answer(FLOOR_BYTES + 1)
    one.settle(0)
    other.check_answer(9_000_000)


def test_who_asks_why_memory_is_high_is_answered() -> None:
    quotas = Rig(max_held_bytes=1_000_000).quotas
    quotas.memory_high = True
    seat = quotas.enter(None)
    seat.grow(900_000)
    quotas.enter(None).grow(900_000)
    with pytest.raises(QueueFull, match="--max-held-bytes"):
        quotas.enter(None).check_answer(900_000)


def test_what_all_may_hold_whatever_others_do_is_the_limit_at_most() -> None:
    """Found: the guaranteed share of each connection was not counted: three thousand connections with 60 KB each got a broker
    in 192 MiB killed by the kernel."""
    quotas = Rig(max_connections=1000, max_held_bytes=4 << 20).quotas
    seats = [quotas.enter(None) for _ in range(64)]
    assert seats[0].floor_bytes == FLOOR_BYTES
    seats += [quotas.enter(None) for _ in range(64)]
    assert seats[0].floor_bytes == quotas.read_bytes == FLOOR_BYTES // 2
    seats[0].settle(FLOOR_BYTES // 2)
    assert quotas.held_bytes == 0
    seats[0].settle(FLOOR_BYTES // 2 + 1)
    assert quotas.held_bytes == FLOOR_BYTES // 2 + 1
    seats += [quotas.enter(None) for _ in range(800)]
    assert seats[0].floor_bytes == FLOOR_BYTES_MIN, "a small message always passes"
    for seat in seats[1:]:
        seat.leave()
    assert (seats[0].floor_bytes, quotas.read_bytes) == (FLOOR_BYTES, READ_BYTES)
    quotas.limit_memory(FLOOR_BYTES * 4)
    assert seats[0].floor_bytes == FLOOR_BYTES // 2, "an eighth of it"
