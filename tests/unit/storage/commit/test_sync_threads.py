"""The threads that wait for the disk."""

import logging
import queue
import threading
import weakref
from collections.abc import Callable

import pytest

from toymq_py.storage.commit.sync_threads import SyncThreads


def test_sync_threads_run_jobs_side_by_side_and_survive_a_bug(caplog: pytest.LogCaptureFixture) -> None:
    posted: list[object] = []
    all_posted = threading.Event()
    barrier = threading.Barrier(3)

    def post(call: object) -> None:
        posted.append(call)
        if len(posted) == 5:
            all_posted.set()

    before = set(threading.enumerate())
    threads = SyncThreads(post, threads_max=3)  # type: ignore[arg-type]
    done: list[int] = []

    def bug() -> None:
        raise MemoryError

    with caplog.at_level(logging.ERROR):
        for n in range(3):
            threads.offload(lambda: barrier.wait(10), lambda n=n: done.append(n))  # type: ignore[misc, arg-type, return-value]
        for n in (3, 4):
            threads.offload(bug, lambda n=n: done.append(n))  # type: ignore[misc]
        assert all_posted.wait(10)
    for call in posted:
        call()  # type: ignore[operator]
    assert sorted(done) == [0, 1, 2, 3, 4]
    assert caplog.text.count("a job for the disk failed") == 2
    started = set(threading.enumerate()) - before
    assert {thread.name for thread in started} == {"sync-0", "sync-1", "sync-2"}
    threads.close()
    for thread in started:
        thread.join(10)
    assert not any(thread.is_alive() for thread in started)


def test_a_job_wakes_the_thread_that_became_idle_last_and_no_other() -> None:
    """Found: with two threads at one queue each job woke both, which cost as much as the hand-over."""
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    threads = SyncThreads(posted.put)
    both = threading.Barrier(2)
    names: list[str] = []
    for _ in range(2):
        threads.offload(lambda: (both.wait(10), names.append(threading.current_thread().name)), lambda: None)  # type: ignore[arg-type, return-value, func-returns-value]
    for _ in range(2):
        posted.get(timeout=10)
    names.clear()
    for _ in range(20):
        threads.offload(lambda: names.append(threading.current_thread().name), lambda: None)
        posted.get(timeout=10)
    assert len(set(names)) == 1
    threads.close()


def test_jobs_that_wait_for_a_thread_run_before_the_threads_end() -> None:
    threads = SyncThreads(lambda call: None, threads_max=1)
    began, go_on = threading.Event(), threading.Event()
    done: list[int] = []
    threads.offload(lambda: (began.set(), go_on.wait(10)), lambda: None)  # type: ignore[arg-type, return-value, func-returns-value]
    for n in range(3):
        threads.offload(lambda n=n: done.append(n), lambda: None)  # type: ignore[misc]
    assert began.wait(10)
    go_on.set()
    threads.close()
    assert done == [0, 1, 2]


def test_a_sync_thread_that_waits_holds_nothing_of_its_last_job() -> None:
    """Found: sixteen idle threads held their last batches, some MiB each."""
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    threads = SyncThreads(posted.put, threads_max=1)  # type: ignore[arg-type]
    gone = threading.Event()

    def job() -> None:
        pass

    weakref.finalize(job, gone.set)
    threads.offload(job, lambda: None)
    del job
    posted.get(timeout=10)()
    assert gone.wait(10)
    threads.close()


def test_a_machine_without_more_threads_goes_on_with_those_it_has(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Found: the current commit was lost, and the stop raised, because the list had a thread that had not started."""
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    threads = SyncThreads(posted.put)  # type: ignore[arg-type]

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done: list[int] = []
    for n in range(3):
        threads.offload(lambda: None, lambda n=n: done.append(n))  # type: ignore[misc]
    for _ in range(3):
        posted.get(timeout=10)()
    assert done == [0, 1, 2]
    assert caplog.text.count("ulimit -u") == 1
    with pytest.raises(OSError, match="ulimit -u"):
        SyncThreads(posted.put)  # type: ignore[arg-type]
    threads.close()


class Ticket:
    """A ticket that the test settles."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def when_settled(self, call: Callable[[], None]) -> None:
        self.calls.append(call)


def test_what_follows_a_job_waits_for_its_ticket_and_the_thread_does_not() -> None:
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    ticket, done = Ticket(), []
    tickets = [ticket, None]

    def run_job(job: Callable[[], None]) -> Ticket | None:
        job()
        return tickets.pop(0)

    threads = SyncThreads(posted.put, threads_max=1, run_job=run_job)
    for name in ("held", "free"):
        threads.offload(lambda name=name: done.append(f"job {name}"), lambda name=name: done.append(name))  # type: ignore[misc]
    for _ in range(2):
        posted.get(timeout=10)()
    assert done == ["job held", "job free", "free"]
    (settled,) = ticket.calls
    settled()
    assert done[-1] == "held"
    threads.close()


def test_a_job_that_comes_after_the_close_is_not_begun() -> None:
    """Found: a commit that ended while the broker closed began the next one, after the directory's lock was released, and its
    thread called a closed loop: RuntimeError, Event loop is closed."""
    posted: list[object] = []
    before = set(threading.enumerate())
    threads = SyncThreads(posted.append)
    done: list[int] = []
    threads.offload(lambda: done.append(1), lambda: threads.offload(lambda: done.append(2), lambda: None))
    threads.close()
    assert len(posted) == 1
    posted[0]()  # type: ignore[operator]
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    assert done == [1]
    assert len(posted) == 1
