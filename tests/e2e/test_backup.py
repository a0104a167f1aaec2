"""`toymq backup`, `restore` and `repair` as they are typed, beside a real broker. Contract: clients.md, "Command lines"."""

import asyncio
import json
import re
import stat
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess, run
from toymq_py.storage import checked_json, webhooks_file
from toymq_py.storage.offline.beside import BESIDE
from toymq_py.storage.segment import segment_name

WINDOW = 64


async def publish_until(port: int, stop: asyncio.Event, answered: list[int], producer: int) -> None:
    """Publish numbered messages, ``WINDOW`` at a time; ``answered`` collects those that were answered OK."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    number = 0
    while not stop.is_set():
        bodies = [b"%d-%d" % (producer, number + n) for n in range(WINDOW)]
        writer.write(b"".join(b"PUB load - %d\n%b\n" % (len(body), body) for body in bodies))
        for _ in range(WINDOW):
            line = await reader.readline()
            assert line.startswith(b"OK "), line
            number += 1
            answered[producer] = number
    writer.close()


def payloads(data_dir: Path) -> set[str]:
    done = run("dump", str(data_dir), "load", "--format", "raw")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


async def test_under_full_load_everything_acknowledged_before_the_start_is_in_it(tmp_path: Path) -> None:
    answered = [0, 0]
    stop = asyncio.Event()
    backup, back = tmp_path / "backup", tmp_path / "back"
    with BrokerProcess(tmp_path / "d", "--segment-bytes", "65536") as broker:
        with broker.connect() as wire:
            assert wire.ask(b"SUB load c window=10\n") == b"OK 1"
        async with asyncio.TaskGroup() as tasks:
            for producer in range(2):
                tasks.create_task(publish_until(broker.port, stop, answered, producer))
            copied = []
            for _ in range(2):
                goal = sum(answered) + 2000
                while sum(answered) < goal:  # noqa: ASYNC110 (counted by the producers)
                    await asyncio.sleep(0)
                before = list(answered)
                done = await asyncio.to_thread(run, "backup", f"{tmp_path}/d", str(backup))
                assert (done.returncode, "damage" in done.stdout) == (0, False), done.stdout + done.stderr
                assert sum(answered) > sum(before), "the load went on meanwhile"
                copied.append(done.stdout.splitlines()[-2])
            stop.set()
        broker.kill()
    assert "0 were there already" in copied[0]
    assert all(" 0 were there already" not in line for line in copied[1:])
    restored = await asyncio.to_thread(run, "restore", str(backup), str(back))
    assert restored.returncode == 0, restored.stderr
    assert run("verify", str(back)).returncode == 0
    held = payloads(back)
    missing = [f"{p}-{n}" for p in range(2) for n in range(before[p]) if f"{p}-{n}" not in held]
    assert missing == []
    with BrokerProcess(back) as broker, broker.connect() as wire:
        (length,) = wire.ask(b"DESCRIBE load\n").split()[1:]
        described = json.loads(wire.read(int(length) + 1))
        assert (described["state"], described["messages"]) == ("ok", len(held))
        assert [consumer["consumer"] for consumer in described["consumers"]] == ["c"]


def test_the_last_words_say_what_is_where_and_the_way_back(tmp_path: Path) -> None:
    """Found: a backup ended with "2 segments copied (158590 bytes), 0 were there already" and no more, and a restore with
    nothing."""
    data, to, back = (f"{tmp_path}/{name}" for name in ("d", "b b", "back"))
    with BrokerProcess(tmp_path / "d") as broker, broker.connect() as wire:
        assert wire.ask(b"PUB t - 4\nbody\n") == b"OK 0"
        *_, made, way_back = run("backup", data, to).stdout.splitlines()
    assert re.fullmatch(rf"{data} is backed up in {to}: 1 segment copied \(\d+ bytes\), 0 were there already", made)
    assert way_back == f"to go back to it: toymq restore '{to}' NEW-DIRECTORY"
    *_, state, way_on = run("restore", to, back).stdout.splitlines()
    assert re.fullmatch(rf"{back} is as it was at \d+-\d\d-\d\d \d\d:\d\d:\d\d UTC, when the backup {to} began", state)
    assert way_on == f"to serve it: toymq serve --data-dir {back}"


def test_what_is_refused_is_one_line(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker, broker.connect() as wire:
        assert wire.ask(b"PUB t - 4\nbody\n") == b"OK 0"
        for command, said in (
            (["backup", f"{tmp_path}/none", f"{tmp_path}/b"], "there is no directory"),
            (["backup", f"{tmp_path}/d", f"{tmp_path}/d/b"], "must lie apart"),
            (["backup", f"{tmp_path}/d", f"{tmp_path}/d/"], "must lie apart"),
            (["restore", f"{tmp_path}/d", f"{tmp_path}/b"], "is not a backup"),
            (["restore", f"{tmp_path}/typo", f"{tmp_path}/b"], f"there is no directory {tmp_path}/typo"),
            (["repair", f"{tmp_path}/d"], f"is in use by process {broker.pid}"),
            (["repair", f"{tmp_path}/none"], "there is no directory"),
        ):
            done = run(*command)
            assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (2, True, False), (command, done)
        assert run("backup", f"{tmp_path}/d/", f"{tmp_path}/b/").returncode == 0
        assert "is not empty" in run("restore", f"{tmp_path}/b", f"{tmp_path}/d").stderr
        assert not (tmp_path / "none").exists()


def test_the_secrets_of_the_webhooks_are_for_their_owner_alone(tmp_path: Path) -> None:
    """Webhook secrets are readable for their owner only: in a new backup, in one that an earlier version left readable to all,
    and in what is restored."""
    with BrokerProcess(tmp_path / "d") as broker:
        broker.terminate()
        assert broker.ended()[0] == 0
    backup, back = tmp_path / "b", tmp_path / "back"
    document = tmp_path / "d" / webhooks_file.FILE_NAME
    document.write_bytes(checked_json.encode("webhooks", {}))
    document.chmod(0o600)
    for _ in range(2):
        assert run("backup", f"{tmp_path}/d", str(backup)).returncode == 0
        assert stat.S_IMODE((backup / webhooks_file.FILE_NAME).stat().st_mode) == 0o600
        (backup / webhooks_file.FILE_NAME).chmod(0o644)
    assert run("restore", str(backup), str(back)).returncode == 0
    assert stat.S_IMODE((back / webhooks_file.FILE_NAME).stat().st_mode) == 0o600


@pytest.mark.parametrize("name", [file.name for file in BESIDE])
def test_what_cannot_be_read_beside_the_topics_is_named_and_keeps_no_message_back(tmp_path: Path, name: str) -> None:
    """Found: a directory in the place of such a file ended the backup with "5: Is a directory". Now every command names it and
    goes on."""
    data, backup = tmp_path / "d", tmp_path / "b"
    with BrokerProcess(data) as broker, broker.connect() as wire:
        assert wire.ask(b"PUB load - 4\nbody\n") == b"OK 0"
        broker.terminate()
        assert broker.ended()[0] == 0
    (data / name).mkdir()
    done = run("backup", str(data), str(backup))
    assert done.returncode == 1
    assert f"{name}: it is a directory, and no file: the backup has none that is newer" in done.stdout + done.stderr
    assert payloads(backup) == {"body"}
    done = run("verify", str(data))
    assert done.returncode == 1
    assert f"{name}: it is a directory, and no file; " in done.stdout
    assert run("repair", str(data)).returncode == 0
    assert run("verify", str(data)).returncode == 0


def test_repair_says_what_is_lost_and_verify_is_clean(tmp_path: Path) -> None:
    data = tmp_path / "d"
    with BrokerProcess(data) as broker, broker.connect() as wire:
        for n in range(3):
            assert wire.ask(b"PUB t - 4\nbody\n") == b"OK %d" % n
        broker.terminate()
        assert broker.ended()[0] == 0
    assert run("repair", str(data)).stdout == "nothing is damaged\n"
    segment = data / "topics" / "t" / segment_name(0)
    content = bytearray(segment.read_bytes())
    content[60] ^= 1
    segment.write_bytes(content)
    assert run("verify", str(data)).returncode == 1
    done = run("repair", str(data))
    assert (done.returncode, done.stdout) == (
        0, "t: repaired, 1 record lost, 1 file in quarantine\n  lost: record 1\n"
    )  # fmt: skip
    assert run("verify", str(data)).returncode == 0
    assert (data / "quarantine" / "1" / "t" / segment_name(0)).read_bytes() == bytes(content)
    assert run("repair", str(data), "--json").stdout == ""
