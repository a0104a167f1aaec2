"""Which AMQP connections are read while the broker holds too much, and how much.

ADR 0232, ADR 0279; tests/e2e/amqp/test_backpressure.py: clients.
"""

import pytest

from tests.support.intake_world import MAX, MESSAGE, MUCH, Connection, World
from toymq_py.amqp import intake
from toymq_py.amqp.errors import CONNECTION_FORCED, RESOURCE_ERROR, AmqpError
from toymq_py.amqp.intake import HUNG_UP_S, IDLE_S, LOOK_S, READ_BYTES_MIN, STUCK_S, TOLD_S, TURN_PART, TURN_S
from toymq_py.auth.quotas import FLOOR_BYTES, FLOOR_BYTES_MIN
from toymq_py.net.bounded_reads import READ_BYTES


@pytest.fixture
def world() -> World:
    return World()


def crowd(world: World, count: int) -> list[Connection]:
    return [Connection(world).has(MUCH) for _ in range(count)]


def reading(connections: list[Connection]) -> list[bool]:
    return [connection.reads for connection in connections]


def test_beyond_the_limit_one_goes_on_and_the_others_are_not_read(world: World) -> None:
    all_of_them = crowd(world, 6)
    assert reading(all_of_them) == [True, True, True, False, False, False], "two have room, the third goes on without"
    all_of_them[2].has(0)
    assert reading(all_of_them) == [True, True, True, True, False, False], "it is whole: the next"
    all_of_them[3].has(MUCH * 2)
    assert reading(all_of_them)[3], "until it is whole"
    assert Connection(world).has(FLOOR_BYTES - READ_BYTES_MIN).reads, "small messages always pass"


def test_as_many_are_let_in_as_have_room_for_a_read(world: World) -> None:
    """If all connections were let in at once, each would read: a thousand fill a container's memory."""
    all_of_them = crowd(world, 8)
    for connection in all_of_them[:3]:
        connection.has(0)
    assert sum(reading(all_of_them[3:])) == 1, "the turn has passed on"
    all_of_them[3].has(0)
    all_of_them[4].has(0)
    world.advance(LOOK_S)
    held = MUCH * 3
    assert sum(reading(all_of_them[5:])) == max(1, -((held - MAX) // world.quotas.read_bytes))


def test_what_others_let_go_is_found_at_the_next_look(world: World) -> None:
    other = world.quotas.enter(None)
    other.settle(MAX + 1)
    all_of_them = crowd(world, 3)
    assert reading(all_of_them) == [True, False, False]
    other.settle(0)
    world.quotas.max_held_bytes *= 2
    world.advance(LOOK_S)
    assert reading(all_of_them) == [True, True, True]


def test_a_turn_that_is_not_used_passes_on_and_the_second_ends_its_connection(world: World) -> None:
    """Found: four clients that sent half a body and nothing more kept all others waiting."""
    idle, first, second = crowd(world, 5)[2:]
    assert reading([idle, first, second]) == [True, False, False]
    world.advance(IDLE_S + 2 * LOOK_S)
    assert reading([idle, first, second]) == [False, True, False]
    first.has(0)
    second.has(0)
    assert idle.reads, "its turn again"
    first.has(MUCH)
    assert idle.errors == []
    world.advance(IDLE_S + 2 * LOOK_S)
    (error,) = idle.errors
    assert error.reply_text.startswith("RESOURCE_ERROR - others wait for memory")
    assert first.reads


def test_a_slow_one_has_its_turn_again_and_again(world: World) -> None:
    slow, other = crowd(world, 4)[2:]
    for _ in range(3):
        turn_s = 0.0
        while slow.reads:
            slow.has(MUCH)
            world.advance(IDLE_S / 2)
            turn_s += IDLE_S / 2
        assert turn_s <= TURN_S + 1
        assert other.reads
        other.has(0)
        other.has(MUCH)
        assert slow.reads
    assert slow.errors == []


def test_one_that_waits_alone_keeps_its_turn(world: World) -> None:
    alone = crowd(world, 3)[2]
    world.advance(10 * TURN_S)
    assert (alone.reads, alone.errors) == (True, [])


def test_a_wait_is_told_when_it_lasts(world: World) -> None:
    goes_on, first, second = crowd(world, 5)[2:]
    world.advance(TOLD_S - LOOK_S)
    goes_on.has(MUCH)
    assert not first.told, "most waits last for one message"
    world.advance(2 * LOOK_S)
    assert (goes_on.told, first.told, second.told) == (False, True, True)
    goes_on.has(0)
    assert (first.told, second.told) == (False, True)


def test_while_memory_is_high_none_goes_on(world: World) -> None:
    world.quotas.memory_high = True
    all_of_them = crowd(world, 2)
    world.advance(TURN_S)
    assert reading(all_of_them) == [False, False]
    world.quotas.memory_high = False
    world.advance(LOOK_S)
    assert reading(all_of_them) == [True, True]


def test_beyond_its_own_share_a_token_waits_while_others_go_on(world: World) -> None:
    limited = [Connection(world) for _ in range(3)]
    for connection in limited:
        connection.seat.identify("a", admin=False)
        connection.has(300_000)
    assert reading(limited) == [True, True, False]
    assert Connection(world).has(FLOOR_BYTES * 2).reads


def test_missed_heartbeats_do_not_count_while_the_broker_does_not_read(world: World) -> None:
    waits = crowd(world, 4)[3]
    world.advance(TOLD_S)
    before = waits.intake.last_read
    crowd(world, 0)
    world.quotas.max_held_bytes *= 10
    world.advance(LOOK_S)
    assert waits.reads
    assert waits.intake.last_read > before


def test_one_that_ends_while_it_waits_is_forgotten(world: World) -> None:
    goes_on, waits, last = crowd(world, 5)[2:]
    waits.intake.close()
    goes_on.intake.close()
    assert last.reads
    assert not world.room.holds(waits.intake)


MIB = 1 << 20


def send(world: World, connections: list[Connection], seconds: float = 0.0) -> int:
    """Read what was sent, as an event loop does, for so long. Returns: the most bytes that were held."""
    most, until = 0, world.clock.monotonic() + seconds
    while True:
        for _ in range(40):
            for connection in connections:
                connection.read()
                most = max(most, world.quotas.held_bytes)
        if world.clock.monotonic() >= until:
            return most
        world.advance(LOOK_S)


def test_one_token_holds_its_share_and_a_message_whatever_it_sends() -> None:
    """It held 34 times the limit: a turn passed on, and what it had brought stayed. The others were refused, admins too."""
    world = World(16 * MIB)
    greedy = [Connection(world, "greedy") for _ in range(40)]
    for connection in greedy:
        connection.in_socket_bytes = 15 * MIB
    assert send(world, greedy, 4 * STUCK_S) <= 8 * MIB + MESSAGE + FLOOR_BYTES + 40 * READ_BYTES_MIN
    assert world.metrics.limits_reached["holder_held_bytes"] >= 40
    other = Connection(world, "other")
    other.in_socket_bytes = MESSAGE
    send(world, [other])
    assert other.held_bytes == MESSAGE
    other.has(0)
    while any(connection.in_socket_bytes and not connection.errors for connection in greedy):
        send(world, greedy, STUCK_S)
    errors = [error for connection in greedy for error in connection.errors]
    assert {error.code for error in errors} == {RESOURCE_ERROR}
    assert "greedy holds 8388608 bytes of bodies and replies, its share of --max-held-bytes" in errors[0].reply_text


def test_those_of_a_token_that_send_whole_messages_go_on_beside_those_that_do_not() -> None:
    world = World(16 * MIB)
    greedy = [Connection(world, "a") for _ in range(20)]
    for connection in greedy:
        connection.in_socket_bytes = 15 * MIB
    send(world, greedy, 1)
    honest = Connection(world, "a")
    honest.in_socket_bytes = MIB
    for _ in range(40):
        send(world, [*greedy, honest], STUCK_S)
    assert (honest.held_bytes, honest.in_socket_bytes, honest.errors) == (MIB, 0, [])


def test_many_channels_with_half_bodies_are_bounded_too(world: World) -> None:
    """One connection that waits alone had its turn without end."""
    alone = Connection(world)
    alone.in_socket_bytes = 100 * MESSAGE
    assert send(world, [alone], STUCK_S - LOOK_S) <= MAX + MESSAGE + FLOOR_BYTES
    assert (alone.reads, alone.errors) == (False, [])
    send(world, [alone], 2 * LOOK_S)
    (error,) = alone.errors
    assert "has no room" in error.reply_text


def test_a_turn_that_has_used_up_its_bytes_goes_on_when_others_are_stored(world: World) -> None:
    """Passed on, the begun message would be in the way of those behind it: forty publishers of a MB stood still."""
    stored = world.quotas.enter(None)
    stored.settle(MESSAGE)
    turn, behind = Connection(world), Connection(world)
    for connection in (turn, behind):
        connection.in_socket_bytes = 3 * MAX // 2
    send(world, [turn, behind], 2 * LOOK_S)
    assert reading([turn, behind]) == [False, False]
    stored.settle(0)
    Connection(world).has(0)
    assert reading([turn, behind]) == [True, False], "something was stored: it is read without a look"
    send(world, [turn, behind])
    assert turn.held_bytes == 3 * MAX // 2


def test_those_within_their_share_have_the_turn_before_others() -> None:
    world = World(8 * MIB)
    world.quotas.enter(None).settle(4 * MIB)
    turn = Connection(world, "a").has(4 * MIB + FLOOR_BYTES)
    behind, within = Connection(world, "a").has(FLOOR_BYTES), Connection(world, "b").has(FLOOR_BYTES + 1)
    assert reading([turn, behind, within]) == [True, False, False]
    turn.intake.close()
    assert reading([behind, within]) == [False, True]


def test_a_turn_brings_a_message_or_a_part_of_the_limit() -> None:
    assert World(MAX).room.turn_bytes == MESSAGE
    assert World(512 * MIB).room.turn_bytes == 512 * MIB // TURN_PART


def test_none_is_closed_where_others_hold_the_room(world: World) -> None:
    """Replies that clients do not read."""
    world.quotas.enter(None).settle(2 * MAX + MESSAGE)
    waits = [Connection(world).has(FLOOR_BYTES) for _ in range(3)]
    world.advance(10 * STUCK_S)
    assert [(connection.reads, connection.errors) for connection in waits] == [(False, [])] * 3


def test_one_that_did_not_use_its_turn_is_closed_before_one_that_holds_more(world: World) -> None:
    idle, other = Connection(world).has(MAX), Connection(world).has(MAX + MAX // 2)
    third = Connection(world).has(MAX)
    idle.intake.idle_turns = 1
    for connection in (idle, other, third):
        connection.intake.settle(MAX, MAX, wants=True)
    world.advance(STUCK_S + 2 * LOOK_S)
    assert [len(connection.errors) for connection in (idle, other, third)] == [1, 0, 0]


def test_where_tokens_together_use_up_the_limit_the_one_that_holds_most_gives_way() -> None:
    """Found by an attack: two tokens filled the limit with many small transactions, and the larger message of a third one, far
    below its share, was closed instead."""
    world = World(16 * MIB)
    greedy = [Connection(world, token).has(410_000) for token in ("x", "y") for _ in range(20)]
    honest = Connection(world, "z").has(MESSAGE + MIB // 2)
    for connection in greedy:
        connection.has(410_000)
    assert not honest.reads, "the limit and a turn are used up"
    while not honest.reads and not honest.errors:
        send(world, greedy, LOOK_S)
    assert honest.errors == []
    assert [len(connection.errors) for connection in greedy].count(1) == 1


def test_a_read_brings_no_more_than_there_is_room_for() -> None:
    world = World(4 * MIB)
    connection = Connection(world, "a")
    assert len(connection.intake.room) == READ_BYTES
    others = Connection(world, "a").has(2 * MIB - 100_000)
    assert len(connection.intake.room) == 100_000
    others.has(3 * MIB)
    assert len(connection.has(1000).intake.room) == FLOOR_BYTES - 1000, "what it may hold whatever others do"
    connection.intake.settle(FLOOR_BYTES * 2, 0, wants=True)
    assert len(connection.intake.room) == FLOOR_BYTES_MIN, "small messages pass beside channels and unread replies"


def test_before_its_login_a_connection_may_hold_little() -> None:
    """Of which token's share it is is not known."""
    world = World(16 * MIB)
    world.quotas.guarded = True
    connection = Connection(world)
    connection.in_socket_bytes = MIB
    send(world, [connection], STUCK_S * 2)
    assert (connection.held_bytes, connection.reads, connection.errors) == (FLOOR_BYTES // 2, False, [])
    connection.seat.identify("a", admin=False)
    connection.has(connection.held_bytes)
    send(world, [connection])
    assert connection.held_bytes == MIB


def test_channels_beyond_the_share_are_refused() -> None:
    """Sixty-four of each connection were not."""
    world = World(2 * MIB)
    Connection(world, "a").has(2 * MIB)
    connection, other = Connection(world, "a"), Connection(world, "b")
    connection.intake.check(FLOOR_BYTES, (20, 10))
    with pytest.raises(AmqpError, match="its share of --max-held-bytes"):
        connection.intake.check(FLOOR_BYTES + 1, (20, 10))
    other.intake.check(FLOOR_BYTES + 1, (20, 10))
    connection.has(FLOOR_BYTES // 2)
    with pytest.raises(AmqpError, match="its share of --max-held-bytes"):
        connection.intake.check(FLOOR_BYTES // 2 + 1, (20, 10))


def test_what_does_not_count_does_not_begin_to_count_while_there_is_no_room() -> None:
    """A hundred connections that each held a little less than may always be held, and then sent a little more."""
    world = World(16 * MIB)
    Connection(world, "a").has(9 * MIB)
    many = [Connection(world, "a") for _ in range(100)]
    for connection in many:
        connection.in_socket_bytes = FLOOR_BYTES - 100
    send(world, many)
    for connection in many:
        connection.in_socket_bytes += FLOOR_BYTES
    send(world, many)
    assert world.quotas.held_bytes <= 8 * MIB + MESSAGE + 2 * FLOOR_BYTES


def test_those_that_hold_much_and_do_not_wait_give_way_too() -> None:
    """Found by an attack: two tokens filled the limit, and had sent all that they meant to send. Of those that waited an honest
    one held most, and was closed."""
    world = World(16 * MIB)
    greedy = [Connection(world, token).has(8 * MIB // 5) for token in ("x", "y") for _ in range(5)]
    honest = Connection(world, "z")
    honest.in_socket_bytes = 2 * MESSAGE
    assert all(reading(greedy)), "none waits"
    while honest.in_socket_bytes and not honest.errors:
        send(world, [honest], LOOK_S)
    assert (honest.errors, honest.held_bytes) == ([], 2 * MESSAGE)
    assert 1 <= [len(connection.errors) for connection in greedy].count(1) <= 3


def test_the_one_that_holds_little_is_not_closed_where_others_hold_the_room_over_http() -> None:
    world = World(8 * MIB)
    for token in ("x", "y"):
        Connection(world, token).seat.settle(9 * MIB // 2)
    honest = Connection(world, "z")
    honest.in_socket_bytes = 4 * MIB
    send(world, [honest], 4 * STUCK_S)
    assert (honest.held_bytes > MIB // 2, honest.reads, honest.errors) == (True, False, [])


def test_while_the_disk_stands_still_none_is_closed(world: World) -> None:
    """A publisher at its share's bound was closed after 5 s."""
    waits = Connection(world)
    waits.intake.settle(4 * MAX, 4 * MAX - 1000, 1000, wants=True)
    world.advance(10 * STUCK_S)
    assert (waits.reads, waits.errors) == (False, [])
    waits.intake.settle(4 * MAX, 4 * MAX - 500, 500, wants=True)
    world.advance(STUCK_S)
    assert waits.errors == [], "one was stored, and the disk stands still again"
    waits.intake.settle(4 * MAX, 4 * MAX, 0, wants=True)
    world.advance(STUCK_S + 2 * LOOK_S)
    assert len(waits.errors) == 1


def test_time_counts_while_the_disk_stores(world: World) -> None:
    """Else a connection that publishes small messages would keep those that hold much."""
    waits, other = Connection(world).has(4 * MAX), Connection(world)
    for _ in range(round(STUCK_S / LOOK_S) + 3):
        other.intake.settle(1000, 0, 1000, wants=True)
        world.advance(LOOK_S * 0.7)
        other.intake.settle(500, 0, 500, wants=True)
        world.advance(LOOK_S * 0.3)
    assert len(waits.errors) == 1


def test_what_is_freed_goes_to_those_that_hold_least() -> None:
    """Found: each time one was closed for them, the next one of the tokens in their way took the room, and they waited for a
    minute."""
    world = World(16 * MIB)
    greedy = [Connection(world, token) for token in ("x", "y") for _ in range(40)]
    for connection in greedy:
        connection.in_socket_bytes = 300_000
    send(world, greedy, LOOK_S)
    honest = Connection(world, "z")
    honest.in_socket_bytes = 4 * MIB
    until = world.clock.monotonic() + STUCK_S * 3
    while honest.in_socket_bytes and not honest.errors and world.clock.monotonic() < until:
        send(world, [*greedy, honest], LOOK_S)
    assert (honest.errors, honest.held_bytes) == ([], 4 * MIB)


def test_a_client_that_hung_up_unnoticed_holds_nothing_any_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: it was not noticed, and what hundreds of them had begun was held for good."""
    greedy = crowd(world, 3)
    monkeypatch.setattr(intake, "hung_up", lambda transports: [each for each in transports if each is greedy[2].intake])
    world.advance(HUNG_UP_S + LOOK_S)
    assert [[error.code for error in each.errors] for each in greedy] == [[], [], [CONNECTION_FORCED]]


@pytest.mark.parametrize("others", [0, MAX])
def test_while_memory_is_high_one_gives_way_only_where_much_of_it_is_held(world: World, others: int) -> None:
    """Found: nothing was read any more, and nothing closed; publishes of all were refused until a restart."""
    waits = Connection(world).has(MUCH)
    Connection(world).seat.settle(others)
    world.quotas.memory_high = True
    waits.has(MUCH)
    world.advance(STUCK_S + 2 * LOOK_S)
    assert (waits.reads, len(waits.errors)) == (False, bool(others))


def test_what_adds_to_a_transaction_is_applied_when_there_is_room_again(world: World) -> None:
    """Found: 57 bytes of a publish became 570 of a transaction, so two tokens held 464 MiB of 32."""
    greedy = crowd(world, 6)
    assert [connection.intake.may_apply for connection in greedy] == reading(greedy)
    waits = next(connection for connection in greedy if not connection.reads)
    woken = waits.woken
    for connection in greedy:
        if connection is not waits:
            connection.has(0)
    world.advance(LOOK_S)
    assert (waits.intake.may_apply, waits.woken > woken) == (True, True)
