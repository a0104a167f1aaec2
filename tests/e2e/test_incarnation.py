"""A topic's incarnation survives a kill, a backup and a restore; definitions do not carry it. ADR 0135."""

from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess, run
from toymq import sync
from toymq.errors import NoSuchTopic


def test_it_survives_a_kill_and_a_topic_made_anew_is_not_read_as_the_old_one(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker:
        with sync.connect(broker.url) as mq:
            for number in range(3):
                mq.pub("orders", b"%d" % number)
            known = mq.topic_range("orders")
            assert (known.first_id, known.next_id) == (0, 3)
            assert known.incarnation is not None
        broker.restart(kill=True)
        with sync.connect(broker.url) as mq:
            assert mq.topic_range("orders") == known
            assert mq.fetch("orders", 1, 9, incarnation=known.incarnation).count == 2
            mq.delete("orders")
            for number in range(5):
                mq.pub("orders", b"new %d" % number)
            assert mq.topic_range("orders").incarnation not in (None, known.incarnation)
            with pytest.raises(NoSuchTopic, match="orders was made anew: its incarnation is"):
                mq.fetch("orders", 1, 9, incarnation=known.incarnation)


def test_a_backup_keeps_it_and_definitions_do_not(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker:
        with sync.connect(broker.url) as mq:
            mq.create("orders", {"ttl": "1h"})
            mq.pub("orders", b"x")
            known = mq.topic_range("orders")
        exported = run("definitions", "export", "--url", broker.url).stdout
        assert "orders" in exported
        assert "incarnation" not in exported
        assert run("backup", str(tmp_path / "d"), str(tmp_path / "copy")).returncode == 0
    assert run("restore", str(tmp_path / "copy"), str(tmp_path / "restored")).returncode == 0
    with BrokerProcess(tmp_path / "restored") as broker, sync.connect(broker.url) as mq:
        assert mq.topic_range("orders") == known
