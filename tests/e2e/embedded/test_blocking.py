"""``toymq.sync.open``: the blocking form, in processes that end in every way."""

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import toymq
import toymq.sync
from tests.support.broker_process import TIMEOUT_S, environment
from toymq.errors import ClientClosed
from toymq_py.config.options import BrokerOptions
from toymq_py.embedded import host
from toymq_py.embedded.host import EMBEDDED, SOCKET_NAME
from toymq_py.errors import ConfigError, DataDirectoryError, DirectoryLocked
from toymq_py.storage.dirlock import DirectoryLock
from toymq_py.storage.fs import RealFileSystem
from toymqctl.cli import main as toymqctl

ROOMY = replace(EMBEDDED, min_free_bytes=0, shutdown_timeout_ms=TIMEOUT_S * 1000)
"""Options of a directory that has a clean stop on a busy machine, too."""


def test_a_wait_outlives_the_process_that_serves(tmp_path: Path) -> None:
    first = toymq.sync.open(tmp_path / "q", options=ROOMY)

    def leave_and_publish() -> None:
        first.close()
        with toymq.sync.open(tmp_path / "q", options=ROOMY) as third:
            third.pub("t", b"x")

    with toymq.sync.open(tmp_path / "q", options=ROOMY) as second:
        assert second.pull("t", "c") == []
        thread = threading.Thread(target=leave_and_publish)
        thread.start()
        (message,) = second.pull("t", "c", wait=TIMEOUT_S)
        assert (message.payload, message.attempt) == (b"x", 1)
        thread.join(TIMEOUT_S)


def test_toymqctl_reaches_it_by_its_socket(tmp_path: Path) -> None:
    with toymq.sync.open(tmp_path) as queue:
        queue.pub("orders", b"x")
        done = CliRunner().invoke(toymqctl, ["--url", f"unix:{tmp_path / SOCKET_NAME}", "topics"])
    assert done.exit_code == 0, done.output
    assert "orders" in done.output


def test_a_blocking_client_takes_over_from_another(tmp_path: Path) -> None:
    first = toymq.sync.open(tmp_path / "q", options=ROOMY)
    with toymq.sync.open(tmp_path / "q", options=ROOMY) as second:
        assert second.pub("t", b"one").msg_id == 0
        first.close()
        first.close()
        assert second.pub("t", b"two").msg_id == 1
        with second.sub("t", "c") as messages:
            assert [messages.next(TIMEOUT_S).payload for _ in range(2)] == [b"one", b"two"]
    with pytest.raises(ClientClosed):
        first.pub("t", b"three")
    with pytest.raises(ClientClosed):
        first.open()
    assert sorted(path.name for path in (tmp_path / "q").iterdir()) == ["LOCK", "topics"], "an ordinary data directory"


def test_a_program_that_ends_without_closing_gives_the_directory_back(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CARELESS, str(tmp_path / "q")],
        env=environment(), timeout=TIMEOUT_S, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (3, b"")
    assert sorted(path.name for path in (tmp_path / "q").iterdir()) == ["LOCK", "topics"]


CARELESS = """
import sys
from dataclasses import replace
from toymq import sync
from toymq_py.embedded.host import EMBEDDED
mq = sync.open(sys.argv[1], options=replace(EMBEDDED, shutdown_timeout_ms=4000))
mq.pub("t", b"x")
sys.exit(3)
"""


def test_waiting_for_a_process_that_says_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host, "SILENT_S", 0.0)
    lock = DirectoryLock.take(RealFileSystem(), str(tmp_path), 4711)
    with pytest.raises(DirectoryLocked, match="process 4711"):
        toymq.sync.open(tmp_path, wait_s=0.1)
    lock.release()
    told = [record.getMessage() for record in caplog.records if record.name == "toymq_py.embedded"]
    assert told == [f"{tmp_path} is in use by process 4711 and does not answer yet: waiting up to 0.1 s"]


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "no" / "parent"):
        with pytest.raises(DataDirectoryError, match=str(path)):
            toymq.sync.open(path)
    with pytest.raises(ConfigError, match="data_dir"):
        toymq.open(tmp_path / "q", options=BrokerOptions(data_dir="elsewhere"))
    with pytest.raises(ConfigError, match="empty"):
        toymq.open("")


def test_a_child_that_outlives_its_parent_keeps_nobody_out(tmp_path: Path) -> None:
    """A fork copies the descriptors of the lock and of the connections. If the child kept them, the lock would stay held after
    the parent's death."""
    with subprocess.Popen(
        [sys.executable, "-c", FORKING, str(tmp_path / "q")], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"CLIENT_CLOSED\n", "what was opened before the fork is refused behind it"
        with toymq.sync.open(tmp_path / "q", options=ROOMY) as mq:
            assert mq.offsets("t") == (0, 2), "the child opened it anew"
            parent.kill()
            assert mq.pub("t", b"x").msg_id == 2, "the child lives, and we serve"
        parent.stdin.close()


FORKING = """
import os, sys
from toymq import sync
from toymq_py.embedded import host
from toymq.errors import ClientClosed
mq = sync.open(sys.argv[1])
mq.pub("t", b"parent's")
if os.fork():
    os.wait()
try:
    mq.pub("t", b"lost")
except ClientClosed as error:
    said = error.code
mq.close()
with sync.open(sys.argv[1]) as own:
    own.pub("t", b"child's")
print(said, flush=True)
sys.stdin.read()
"""
