"""Bytes read before the parser needs them: when reading is paused, which bytes count, and what ends it."""

from collections.abc import Iterator

import pytest

from toymq_py.auth.quotas import Quotas
from toymq_py.config.options import BrokerOptions
from toymq_py.gateway.read_ahead import AHEAD_BYTES, HEAD_COST, ReadAhead
from toymq_py.metrics import Metrics


class Transport:
    """A transport that records whether it reads."""

    reads = True
    closing = False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.closing


@pytest.fixture
def transport() -> Transport:
    return Transport()


@pytest.fixture
def ahead(transport: Transport) -> Iterator[ReadAhead]:
    ahead = ReadAhead(transport)  # type: ignore[arg-type]  # as much as is needed
    ahead.seat = Quotas(BrokerOptions(), Metrics()).enter(None)
    yield ahead
    ahead.keep(b"", stays=False)
    assert ahead.seat.held_bytes == 0


LITTLE, MUCH = bytes(AHEAD_BYTES), bytes(AHEAD_BYTES + 1)


def test_it_reads_on_behind_a_request_that_waits_up_to_a_limit(ahead: ReadAhead, transport: Transport) -> None:
    ahead.add(LITTLE, stays=True)
    assert transport.reads, "the end of the stream would not be seen"
    ahead.add(b"x", stays=True)
    assert (transport.reads, ahead.held, ahead.reads) == (False, True, False)
    ahead.keep(LITTLE, stays=True)
    assert transport.reads


def test_the_first_piece_of_a_body_has_its_turn_before_reading_is_held(ahead: ReadAhead, transport: Transport) -> None:
    ahead.add(MUCH, stays=False)
    assert transport.reads
    ahead.add(b"x", stays=False)
    assert not transport.reads


def test_where_there_are_many_connections_less_is_read_ahead(transport: Transport) -> None:
    quotas = Quotas(BrokerOptions(max_held_bytes=1 << 20), Metrics())
    ahead = ReadAhead(transport)  # type: ignore[arg-type]
    seats = [quotas.enter(None) for _ in range(64)]
    ahead.seat = seats[0]
    ahead.keep(bytes(16 * 1024), stays=False)
    assert transport.reads
    ahead.keep(bytes(16 * 1024 + 1), stays=False)
    assert not transport.reads


def test_what_is_dropped_leaves_room_and_more_is_read(ahead: ReadAhead, transport: Transport) -> None:
    assert ahead.seat is not None
    ahead.add(MUCH, stays=True)
    ahead.head(len(MUCH))
    ahead.wait_for_body(True)
    ahead.drop()
    assert (ahead.data, ahead.seat.held_bytes, transport.reads) == (b"", 0, True)


def test_only_what_stays_counts(ahead: ReadAhead) -> None:
    assert ahead.seat is not None
    ahead.add(MUCH, stays=False)
    assert ahead.seat.held_bytes == 0
    ahead.add(b"x", stays=True)
    assert ahead.seat.held_bytes == len(MUCH) + 1


def test_a_body_that_waits_holds_reading_by_itself(ahead: ReadAhead, transport: Transport) -> None:
    ahead.wait_for_body(True)
    ahead.keep(LITTLE, stays=False)
    assert not transport.reads
    ahead.wait_for_body(False)
    assert transport.reads


def test_what_is_stopped_is_dropped_and_not_read_again(ahead: ReadAhead, transport: Transport) -> None:
    ahead.add(MUCH, stays=True)
    ahead.stop()
    assert (ahead.data, ahead.held, transport.reads) == (b"", False, False)


def test_a_transport_that_ends_is_left_alone(ahead: ReadAhead, transport: Transport) -> None:
    """uvloop raises for a transport that is closing, and after the end of the stream there is nothing to read."""
    transport.closing = True
    ahead.add(MUCH, stays=True)
    assert transport.reads
    transport.closing, ahead.eof = False, True
    ahead.wait_for_body(True)
    assert transport.reads


def test_a_head_counts_with_what_its_headers_take(ahead: ReadAhead) -> None:
    assert ahead.seat is not None
    assert ahead.head(AHEAD_BYTES // HEAD_COST)
    assert ahead.seat.held_bytes == 0
    assert ahead.head(AHEAD_BYTES)
    ahead.keep(MUCH, stays=True)
    assert ahead.seat.held_bytes == HEAD_COST * AHEAD_BYTES + len(MUCH)
    ahead.head(0)
    assert ahead.seat.held_bytes == len(MUCH)
