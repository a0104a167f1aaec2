"""A restart at sensitive moments: between ack and subscribe, at the first message, with acks above a gap."""

import asyncio
from pathlib import Path

import pytest

import toymq
from tests.support.broker_process import TIMEOUT_S, BrokerProcess
from toymq import sync

KILL = pytest.mark.parametrize("kill", [True, False], ids=["SIGKILL", "SIGTERM"])


@KILL
@pytest.mark.parametrize("acked_id", [0, 1])
def test_an_acked_message_does_not_come_again(tmp_path: Path, kill: bool, acked_id: int) -> None:
    """In another broker "id 0 is acked" and "never acked" were stored alike, so message 0 was redelivered. Here the broker
    restarts between all steps."""
    with BrokerProcess(tmp_path / "d") as broker:
        for msg_id in range(acked_id + 1):
            with broker.connect() as wire:
                assert wire.ask(b"PUB orders - 5\nhello\n") == b"OK %d" % msg_id
            broker.restart(kill=kill)
        for msg_id in range(acked_id + 1):
            with broker.connect() as wire:
                assert wire.ask(b"SUB orders billing window=1\n") == b"OK 1"
                assert wire.message() == (msg_id, 1, b"hello")
                wire.send(b"PAUSE\nACK orders billing %d sync=1\n" % msg_id)
                assert (wire.line(), wire.line()) == (b"OK 0", b"OK 1")
            broker.restart(kill=kill)
        with broker.connect() as wire:
            assert wire.ask(b"SUB orders billing\n") == b"OK 1"
            wire.nothing_before_pong()


@KILL
def test_acks_above_a_gap_survive(tmp_path: Path, kill: bool) -> None:
    with BrokerProcess(tmp_path / "d") as broker:
        with broker.connect() as wire:
            for n in range(6):
                wire.ask(b"PUB t - 1\n%d\n" % n)
            wire.ask(b"SUB t c\n")
            assert [wire.message()[0] for _ in range(6)] == list(range(6))
            assert wire.ask(b"ACK t c 1-2,4 sync=1\n") == b"OK 3"
        broker.restart(kill=kill)
        with broker.connect() as wire:
            wire.ask(b"SUB t c\n")
            assert [wire.message()[:2] for _ in range(3)] == [(0, 2), (3, 1), (5, 1)], "the lowest counts, and survives"
            wire.nothing_before_pong()
            assert wire.ask(b"ACK t c 0-5 sync=1\n") == b"OK 3"
        broker.restart(kill=kill)
        with broker.connect() as wire:
            wire.ask(b"SUB t c\n")
            wire.nothing_before_pong()


def test_where_a_consumer_begins_survives(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker:
        with broker.connect() as wire:
            wire.ask(b"PUB t - 1\na\n")
            assert wire.ask(b"SUB t late start=latest\n") == b"OK 1"
            assert wire.ask(b"SEEK t sought 1\n") == b"OK 1"
        broker.restart()
        with broker.connect() as wire:
            wire.ask(b"PUB t - 1\nb\n")
            wire.ask(b"SUB t late\n")
            assert wire.message() == (1, 1, b"b")
        with broker.connect() as wire:
            wire.ask(b"SUB t sought\n")
            assert wire.message() == (1, 1, b"b")


def test_duplicates_are_known_after_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker:
        with broker.connect() as wire:
            assert wire.ask(b"PUB t key-1 1\na\n") == b"OK 0"
            assert wire.ask(b"PUB t key-1 1\na\n") == b"DUP 0"
        broker.restart()
        with broker.connect() as wire:
            assert wire.ask(b"PUB t key-1 1\na\n") == b"DUP 0"
            assert wire.ask(b"OFFSETS t\n") == b"OFFSETS t 0 1"


def test_settings_and_a_deleted_topic_survive(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker:
        with broker.connect() as wire:
            assert wire.ask(b"CREATE kept visibility=5000\n") == b"OK 0"
            assert wire.ask(b"PUB gone - 1\na\n") == b"OK 0"
            assert wire.ask(b"DELETE gone\n") == b"OK 1"
        broker.restart()
        with broker.connect() as wire:
            assert wire.ask(b"CREATE kept visibility=5000\n") == b"OK 0"
            assert wire.ask(b"CREATE kept visibility=6000\n").startswith(b"ERR EXISTS")
            assert wire.ask(b"OFFSETS gone\n").startswith(b"ERR NO_SUCH_TOPIC")
            assert wire.ask(b"PUB gone - 1\nb\n") == b"OK 0", "a topic that is created anew begins at 0"


def test_an_ack_of_what_was_delivered_just_before_the_kill_is_taken(tmp_path: Path) -> None:
    """Found: a delivery that was not on the disk before the kill was forgotten, so its ack was answered OK 0, and the message
    was redelivered."""
    with BrokerProcess(tmp_path / "d") as broker:
        with broker.connect() as wire:
            for _ in range(4):
                wire.ask(b"PUB orders - 5\nhello\n")
            wire.ask(b"PUB orders - 5 delay=3600000\nlater\n")
            wire.ask(b"SUB orders billing window=2\n")
            assert [wire.message()[0] for _ in range(2)] == [0, 1]
            broker.restart(kill=True)
        with broker.connect() as wire:
            assert wire.ask(b"ACK orders billing 0 sync=1\n") == b"OK 1"
        broker.restart(kill=True)
        with broker.connect() as wire:
            wire.ask(b"SUB orders billing window=1\n")
            assert wire.message()[0] == 1, "0 is acked"
            wire.send(b"PUB orders - 3\nnew\n")
            assert wire.line() == b"OK 5"
            assert wire.ask(b"ACK orders billing 4-5\n") == b"OK 0", "one is not due, and one was published in this life"
            assert wire.ask(b"ACK orders billing 1-4 sync=1\n") == b"OK 3", "what is not due drops out of the range"
            assert wire.message()[0] == 5


async def test_an_ack_with_sync_after_kill_and_restart_holds_for_the_asyncio_client(tmp_path: Path) -> None:
    """Found: a client had a message, the broker was killed right after the delivery, and ``ack(sync=True)`` returned on the new
    connection; yet the message was redelivered, 80 times of 80."""
    with BrokerProcess(tmp_path / "d") as broker:
        url = f"toymq://127.0.0.1:{broker.port}"
        async with toymq.connect(url, backoff_min_s=0.01, backoff_max_s=0.05) as mq:
            await mq.pub("orders", b"first")
            async with mq.sub("orders", "billing", window=1) as messages:
                message = await messages.next(timeout=TIMEOUT_S)
                await asyncio.to_thread(broker.restart, kill=True)
                await message.ack(sync=True)
        broker.restart(kill=True)
        async with toymq.connect(url) as mq:
            await mq.pub("orders", b"second")
            async with mq.sub("orders", "billing") as messages:
                assert (await messages.next(timeout=TIMEOUT_S)).payload == b"second", "what was acked does not come again"


def test_an_ack_with_sync_after_kill_and_restart_holds_for_the_sync_client(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker:
        url = f"toymq://127.0.0.1:{broker.port}"
        with sync.connect(url, backoff_min_s=0.01, backoff_max_s=0.05) as mq:
            mq.pub("orders", b"first")
            with mq.sub("orders", "billing", window=1) as messages:
                message = messages.next(timeout=TIMEOUT_S)
                broker.restart(kill=True)
                message.ack(sync=True)
        broker.restart(kill=True)
        with sync.connect(url) as mq:
            mq.pub("orders", b"second")
            with mq.sub("orders", "billing") as messages:
                assert messages.next(timeout=TIMEOUT_S).payload == b"second", "what was acked does not come again"
