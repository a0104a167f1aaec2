"""Bytes of a session until they are commands: the inbox, its bound, the end of the stream."""

import asyncio

from toymq_py.errors import QueueFull
from toymq_py.metrics import Metrics
from toymq_py.protocol import Ping, Publish, Rejected
from toymq_py.session.reader import COMMANDS_PER_RUN, INBOX_BYTES_MAX, Reader


class Transport(asyncio.Transport):
    """A transport that counts a reader's calls."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.closing = False

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing


def reader(max_payload_bytes: int = 1024, commands_per_run: int = COMMANDS_PER_RUN) -> tuple[Reader, Transport, Metrics]:
    transport, metrics = Transport(), Metrics()
    return Reader(transport, metrics, max_payload_bytes, commands_per_run), transport, metrics


def test_a_run_is_what_arrived_up_to_its_bound() -> None:
    one, _, _ = reader(commands_per_run=2)
    one.received(b"PING\n" * 3 + b"PI")
    assert one.waiting
    runs = [one.next_run()]
    assert not one.caught_up
    while run := one.next_run():
        runs.append(run)
    assert [command for run in runs for command in run] == [Ping()] * 3
    assert max(map(len, runs)) <= 2
    assert one.caught_up
    assert one.count_bytes() == len(b"PI")
    assert not one.waiting, "a part of a command is nothing to do"


def test_reading_stops_at_the_bound_and_goes_on_below() -> None:
    one, transport, _ = reader(commands_per_run=1)
    for _ in range(2):
        one.received(b"PING\n" * (INBOX_BYTES_MAX // 10))
    assert transport.reading
    one.received(b"PING\n" * 2)
    assert not transport.reading
    one.next_run()
    assert transport.reading


def test_the_bound_may_become_less_and_more() -> None:
    one, transport, _ = reader(commands_per_run=1)
    one.received(b"PING\n" * 20)
    one.limit_inbox(99)
    assert not transport.reading
    one.limit_inbox(100)
    assert transport.reading
    one.received(b"PING\n")
    assert not transport.reading
    one.next_run()
    assert transport.reading


def test_bytes_that_came_are_to_be_parsed_whatever_was_before() -> None:
    one, _, _ = reader()
    one.received(b"PING\n")
    while one.next_run():
        pass
    assert one.caught_up
    one.received(b"PING\n")
    assert not one.caught_up


def test_a_transport_that_closes_is_not_read_from() -> None:
    one, transport, _ = reader()
    one.received(b"PING\n" * INBOX_BYTES_MAX)
    transport.closing = True
    one.next_run()
    assert not transport.reading


def test_the_end_of_the_stream_comes_behind_the_last_command_and_is_counted_when_it_tears_one() -> None:
    for tail, torn in ((b"", 0), (b"PUB t - 5\nhel", 1)):
        one, _, metrics = reader()
        one.received(b"PING\n" + tail)
        one.eof = True
        assert one.next_run() == [Ping()]
        assert not one.finished
        for _ in range(2):
            assert one.next_run() == []
        assert one.finished
        assert metrics.connections_torn_total == torn


def test_bodies_are_taken_when_a_token_was_accepted() -> None:
    one, _, _ = reader(max_payload_bytes=0, commands_per_run=1)
    one.received(b"PING\nPUB t - 2\nhi\n")
    assert one.next_run() == [Ping()]
    one.accept_payloads(1024)
    (publish,) = one.next_run()
    assert isinstance(publish, Publish)
    assert publish.bodies == [b"hi"]


def test_a_body_that_arrives_is_dropped_and_its_command_refused() -> None:
    one, _, _ = reader()
    one.received(b"PUB t - 900\n" + b"x" * 600)
    assert one.next_run() == []
    assert not one.has_body_above(600), "so much each connection may hold"
    assert one.has_body_above(599)
    assert one.refuse_body(QueueFull("no room"))
    one.received(b"x" * 300 + b"\nPING\n")
    rejected, ping = one.next_run() + one.next_run()
    assert isinstance(rejected, Rejected)
    assert rejected.error.code == "QUEUE_FULL"
    assert ping == Ping()
    assert one.bytes_max < 1024


def test_discarding_reads_on() -> None:
    one, transport, _ = reader()
    one.received(b"PING\n" * INBOX_BYTES_MAX)
    assert not transport.reading
    one.discard()
    assert transport.reading
