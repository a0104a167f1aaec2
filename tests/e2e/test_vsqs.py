"""``toymq.compat.vsqs``: what programs written for vsqs 0.3 rely on, without the faults of vsqs (dialects.md)."""

import math
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from tests.support.broker_process import TIMEOUT_S, environment, run
from tests.support.shares import seeds
from toymq.compat.vsqs import QueueException, QueueFullException, QueueManager
from toymq_py.errors import BadArgument, BadName, DataDirectoryError

LONG_S = 3600
CONSUME = """
import sys
from toymq.compat.vsqs import QueueManager
queue = QueueManager(sys.argv[1]).get_queue("jobs")
print("ready", flush=True)
sys.stdin.readline()
while (found := queue.receive(visibility_timeout=3600, timeout=float(sys.argv[2])))[0] is not None:
    print(found[0], found[1].decode(), flush=True)
    queue.delete(found[0])
"""
SINK = """
import sys
from toymq.compat.vsqs import QueueManager
queue = QueueManager(sys.argv[1]).get_queue("jobs")
while True:
    m_id, data = queue.receive(timeout=1)
    if m_id is not None:
        queue.delete(m_id)
        print(data.decode(), flush=True)
        if data == b"end":
            break
"""
"""As ``vsqssink`` of the original, but for its end."""
FORK = """
import os, sys
from toymq.compat.vsqs import QueueException, QueueManager
manager = QueueManager(sys.argv[1])
queue = manager.get_queue("jobs")
queue.publish(b"x")
child = os.fork()
if not child:
    try:
        queue.size()
    except QueueException as error:
        os._exit(0 if "fork" in str(error) else 2)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), queue.size())
"""


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[QueueManager]:
    opened = QueueManager(tmp_path / "some" / "queues")
    yield opened
    opened.close()


def test_messages_come_in_their_order_and_stay_until_they_are_deleted(manager: QueueManager) -> None:
    queue = manager.get_queue("jobs")
    published = [queue.publish(b"%d" % n) for n in range(5)]
    assert published == sorted(published)
    received = [queue.receive() for _ in range(5)]
    assert received == [(m_id, b"%d" % n) for n, m_id in enumerate(published)]
    assert queue.size() == 5, "those in flight are counted"
    assert queue.receive(timeout=0) == (None, None), "they are hidden"
    for m_id in reversed(published):
        queue.delete(m_id)
    assert queue.size() == 0
    queue.delete(published[0])  # once more is no error
    queue.close()


def test_what_is_not_deleted_in_its_time_comes_again(manager: QueueManager) -> None:
    queue = manager.get_queue("jobs")
    first, second = queue.publish(b"1"), queue.publish(b"2")
    assert queue.receive(visibility_timeout=0) == (first, b"1")
    again = [queue.receive(visibility_timeout=LONG_S, timeout=TIMEOUT_S) for _ in range(2)]
    assert sorted(again) == [(first, b"1"), (second, b"2")]
    assert queue.receive(timeout=0.01) == (None, None)


def test_a_receive_that_waits_wakes_when_a_lease_ends(manager: QueueManager) -> None:
    queue = manager.get_queue("jobs")
    m_id = queue.publish(b"x")
    for _ in range(25):  # more often than a broker's own max_attempts
        assert queue.receive(visibility_timeout=0.005, timeout=None) == (m_id, b"x")


def test_a_receive_that_waits_wakes_when_a_message_comes(manager: QueueManager) -> None:
    """Another thread may publish meanwhile, through the same objects."""
    queue = manager.get_queue("jobs")
    received: list[object] = []
    thread = threading.Thread(target=lambda: received.append(queue.receive()))
    thread.start()
    m_id = queue.publish(b"x")
    thread.join(TIMEOUT_S)
    assert received == [(m_id, b"x")]


def test_delete_works_from_any_object(manager: QueueManager, tmp_path: Path) -> None:
    """In vsqs such a delete does nothing, and the message is delivered again."""
    queue = manager.get_queue("jobs")
    m_id = queue.publish(b"x")
    assert queue.receive(visibility_timeout=LONG_S) == (m_id, b"x")
    other = QueueManager(tmp_path / "some" / "queues").get_queue("jobs")
    other.delete(m_id)
    assert queue.size() == 0
    other.manager.close()


def test_a_message_that_nobody_received_can_be_deleted(manager: QueueManager) -> None:
    queue = manager.get_queue("jobs")
    ids = [queue.publish(b"%d" % n) for n in range(4)]
    queue.delete(ids[2])
    assert queue.size() == 3
    queue.delete(ids[2])
    queue.delete("99")
    assert [queue.receive()[0] for _ in range(3)] == [ids[0], ids[1], ids[3]], "and the others are where they were"
    for bad in ("x", "-1", ""):
        with pytest.raises(QueueException):
            queue.delete(bad)


def test_a_full_queue_refuses_or_waits_for_room(manager: QueueManager) -> None:
    queue = manager.get_queue("small", capacity=2)
    ids = [queue.publish(b"1"), queue.publish(b"2")]
    with pytest.raises(QueueFullException):
        queue.publish(b"3", timeout=0)
    with pytest.raises(QueueFullException):
        queue.publish(b"3", timeout=0.01)
    assert queue.receive(visibility_timeout=LONG_S)[0] == ids[0]
    with pytest.raises(QueueFullException):
        manager.get_queue("small").publish(b"3", timeout=0)  # what is in flight takes room, and the capacity is the queue's
    published: list[str] = []
    thread = threading.Thread(target=lambda: published.append(queue.publish(b"3")))
    thread.start()
    queue.delete(ids[0])
    thread.join(TIMEOUT_S)
    assert published == ["2"]
    assert [queue.receive()[1] for _ in range(2)] == [b"2", b"3"], "what was refused is not there"
    assert manager.get_queue("small", capacity=5).publish(b"4", timeout=0) == "3"


def test_several_processes_share_the_work_in_its_order(manager: QueueManager, tmp_path: Path) -> None:
    queue = manager.get_queue("jobs")
    count = 60
    command = [sys.executable, "-W", "error", "-c", CONSUME, str(tmp_path / "some" / "queues"), "1"]
    workers = [Popen(command, env=environment(), stdin=PIPE, stdout=PIPE, text=True) for _ in range(2)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for n in range(count):
        queue.publish(b"job-%d" % n)
    seen = [worker.communicate("\n", timeout=TIMEOUT_S)[0].splitlines() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    assert sorted([*seen[0], *seen[1]], key=lambda line: int(line.split()[0])) == [f"{n} job-{n}" for n in range(count)]
    for lines in seen:
        ids = [int(line.split()[0]) for line in lines]
        assert ids == sorted(ids), "none gets an older one after a newer one"
    assert queue.size() == 0


def test_the_process_that_serves_is_killed(tmp_path: Path) -> None:
    """The other processes go on, and deleted messages stay deleted."""
    command = [sys.executable, "-c", CONSUME, str(tmp_path / "d"), "1"]
    with Popen(command, env=environment(), stdin=PIPE, stdout=PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        manager = QueueManager(tmp_path / "d")
        queue = manager.get_queue("jobs")
        first, second = queue.publish(b"1"), queue.publish(b"2")
        assert queue.receive()[0] == first
        queue.delete(first)
        received: list[object] = []
        assert queue.receive(visibility_timeout=LONG_S)[0] == second
        thread = threading.Thread(target=lambda: received.append(queue.receive(timeout=TIMEOUT_S)))
        thread.start()
        server.kill()
        thread.join(TIMEOUT_S)
    assert received == [(second, b"2")], "a lease ends with the process that served"
    assert queue.publish(b"3") == "2"
    manager.close()


def test_a_delete_outlives_the_process_that_serves(tmp_path: Path) -> None:
    """Found: a delete that was under way when the serving process ended raised ConnectionLost."""
    command = [sys.executable, "-c", CONSUME, str(tmp_path / "d"), "1"]
    with Popen(command, env=environment(), stdin=PIPE, stdout=PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        manager = QueueManager(tmp_path / "d")
        queue = manager.get_queue("jobs")
        m_id = queue.publish(b"1")
        assert queue.receive(visibility_timeout=LONG_S)[0] == m_id
        server.send_signal(signal.SIGSTOP)
        with ThreadPoolExecutor() as threads:
            deleting = threads.submit(queue.delete, m_id)
            link = manager._engine._mq._link
            while link.conversation.idle:  # until the ack is said; nothing answers it
                assert not deleting.done()
            server.kill()
            deleting.result(TIMEOUT_S)
    assert queue.size() == 0
    assert queue.receive(timeout=0) == (None, None)
    manager.close()


@pytest.mark.parametrize("n", seeds(1, 3))
def test_a_sink_outlives_the_processes_that_serve(tmp_path: Path, n: int) -> None:
    """Found: ``vsqssink`` crashed with ConnectionLost. Whichever moment the kill hits, all published messages must be deleted
    in the end."""
    path = str(tmp_path / "d")
    with Popen([sys.executable, "-c", CONSUME, path, "1"], env=environment(), stdin=PIPE, stdout=PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        manager = QueueManager(path)
        queue = manager.get_queue("jobs")
        with Popen([sys.executable, "-c", SINK, path], env=environment(), stdout=PIPE, stderr=PIPE, text=True) as sink:
            assert sink.stdout is not None
            for job in range(200):
                queue.publish(b"%d" % job)
            seen = [sink.stdout.readline() for _ in range(20 * n + 1)]
            server.kill()
            queue.publish(b"end")
            seen += sink.stdout.readlines()
            assert sink.stderr is not None
            trouble = sink.stderr.read()
        assert (sink.returncode, "Traceback" in trouble) == (0, False), trouble
        assert set(map(str.strip, seen)) == {*map(str, range(200)), "end"}
    assert queue.size() == 0
    manager.close()


def test_a_fork_says_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, str(tmp_path / "d")],
        env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("0 1\n", "")


def test_what_is_wrong_is_named(manager: QueueManager, tmp_path: Path) -> None:
    with pytest.raises(BadName):
        manager.get_queue("../jobs")
    with pytest.raises(BadArgument):
        manager.get_queue("jobs", capacity=0)
    with pytest.raises(TypeError):
        manager.get_queue("jobs").publish("text")  # type: ignore[arg-type]
    queue = manager.get_queue("jobs")
    with pytest.raises(TypeError, match="visibility_timeout is a number of seconds or a text with a unit, not None"):
        queue.receive(visibility_timeout=None, timeout=0)  # type: ignore[arg-type]
    for call in (lambda: queue.receive(timeout=b"5"), lambda: queue.publish(b"x", timeout=[])):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"^timeout is a number of seconds"):
            call()
    queue.publish(b"x", timeout=math.inf)
    assert queue.receive(timeout=math.inf) == ("0", b"x"), "as with vsqs it waits for ever"
    (tmp_path / "file").write_text("")
    with pytest.raises((FileExistsError, DataDirectoryError)):
        QueueManager(tmp_path / "file")


def test_a_closed_manager_gave_the_directory_back(tmp_path: Path) -> None:
    manager = QueueManager(tmp_path / "d")
    queue = manager.get_queue("jobs")
    queue.publish(b"x")
    manager.close()
    manager.close()
    with pytest.raises(QueueException, match="closed"):
        queue.receive()
    assert run("verify", str(tmp_path / "d")).returncode == 0
    again = QueueManager(tmp_path / "d")
    assert again.get_queue("jobs").receive() == ("0", b"x")
    again.close()
