"""Messages and acks that HTTP has answered survive ``kill -9``."""

import os
from pathlib import Path

import httpx
import pytest

from tests.support.broker_process import BrokerProcess


def kill_after_201(directory: Path, times: int) -> None:
    """Kill the broker right after the answer; after the restart the message is there, under its id."""
    broker = BrokerProcess(directory, "--http", "127.0.0.1:0")
    for n in range(times):
        with broker, httpx.Client(base_url=broker.http) as client:
            if n:
                log = client.get(f"/v1/topics/t/log?from={n - 1}").json()
                assert [(m["id"], m["payload"]) for m in log["messages"]] == [(n - 1, f"message {n - 1}")], f"kill {n}"
            answer = client.post("/v1/topics/t/messages", content=f"message {n}")
            broker.kill()
            assert (answer.status_code, answer.json()["id"]) == (201, n)


def kill_after_204(directory: Path, times: int) -> None:
    """Kill the broker right after the answer of an ack; that message is not redelivered, the unacked ones are."""
    broker = BrokerProcess(directory, "--http", "127.0.0.1:0")
    for n in range(times):
        with broker, httpx.Client(base_url=broker.http) as client:
            assert client.post("/v1/topics/t/messages", content=f"message {n}").status_code == 201
            leased = client.get("/v1/topics/t/messages?consumer=c&max=10").json()["messages"]
            assert [m["payload"] for m in leased] == [f"message {n}"], f"kill {n}: what was acked came again"
            answer = client.delete(f"/v1/topics/t/messages/{n}?consumer=c")
            broker.kill()
            assert answer.status_code == 204


def test_an_ack_survives_a_kill(tmp_path: Path) -> None:
    kill_after_204(tmp_path / "d", 3)


@pytest.mark.torture
def test_an_ack_survives_200_kills(tmp_path: Path) -> None:
    kill_after_204(tmp_path / "d", int(os.environ.get("TOYMQ_TORTURE_KILLS", "200")))


def test_a_201_survives_a_kill(tmp_path: Path) -> None:
    kill_after_201(tmp_path / "d", 3)


@pytest.mark.torture
def test_a_201_survives_200_kills(tmp_path: Path) -> None:
    kill_after_201(tmp_path / "d", int(os.environ.get("TOYMQ_TORTURE_KILLS", "200")))
