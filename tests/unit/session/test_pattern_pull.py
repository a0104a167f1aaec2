"""A PULL of a pattern over several workers, which answer as the test says."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from toymq_py.errors import PlacementUnknown
from toymq_py.protocol import Command, Nack, Pull
from toymq_py.session.pattern_pull import PatternPull
from toymq_py.session.spread_subscription import PATIENCE_S


class Link:
    """A connection that waits."""

    def __init__(self, heard: Callable[[list[bytes]], None], ended: Callable[[], None]) -> None:
        self.heard, self.ended = heard, ended
        self.sent: list[bytes] = []
        self.finished = self.closed = False

    def send(self, pieces: list[bytes]) -> None:
        self.sent += pieces

    def finish(self) -> None:
        self.finished = True

    def close(self) -> None:
        self.closed = True


class Workers:
    """The workers; ``asked``: the commands of each, and how it answers."""

    def __init__(self, max_count: int = 3, wait_ms: int = 0, count: int = 3, *, begins: bool = True) -> None:
        self.asked: list[tuple[int, Command, Callable[[bytes], None]]] = []
        self.links: list[Link] = []
        self.replies: list[bytes] = []
        self.lost = 0
        self.away: set[int] = set()
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.now_s = 100.0
        self.pull = PatternPull(
            Pull("t.*", "c", max_count, wait_ms, lease=7), range(count), self._ask, self._connect, self.replies.append,
            self._lose, self._later, self._time,
        )
        if begins:
            self.pull.begin()

    def _time(self) -> float:
        return self.now_s

    def _ask(self, worker: int, command: Command, answered: Callable[[bytes], None]) -> None:
        self._check(worker)
        self.asked.append((worker, command, answered))

    def _connect(self, worker: int, heard: Callable[[list[bytes]], None], ended: Callable[[], None]) -> Any:
        self._check(worker)
        self.links.append(Link(heard, ended))
        return self.links[-1]

    def _check(self, worker: int) -> None:
        if worker in self.away:
            raise PlacementUnknown(f"worker {worker} stands still")

    def _later(self, delay_s: float, run: Callable[[], None]) -> Any:
        self.timers.append(timer := (delay_s, run))
        return SimpleNamespace(cancel=lambda: self.timers.remove(timer) if timer in self.timers else None)

    def pass_time(self) -> None:
        """Run all timers that are due."""
        timers, self.timers = self.timers, []
        for _, run in timers:
            run()

    def _lose(self) -> None:
        self.lost += 1

    def answer(self, reply: bytes) -> None:
        """Answer as the worker that was asked last."""
        self.asked[-1][2](reply)


def message(topic: str, number: int, payload: str = "OK 9") -> bytes:
    return f"MSG {topic} {number} 1 9 - {len(payload)}\n{payload}\n".encode()


def test_one_after_the_other_is_asked_until_one_has_messages() -> None:
    """Each worker counts an attempt when its leases end, though the client hangs on one message. Found: a PULL with messages of
    two workers took a healthy message along with each poison."""
    workers = Workers()
    workers.answer(b"OK 0\n")
    workers.answer(message("t.b", 5) + message("t.b", 6) + b"OK 2\n")
    assert [(worker, command.max_count, command.wait_ms) for worker, command, _ in workers.asked] == [(0, 3, 0), (1, 3, 0)]
    assert workers.replies == [message("t.b", 5) + message("t.b", 6) + b"OK 2\n"]


def test_none_without_a_wait() -> None:
    workers = Workers()
    for _ in range(3):
        workers.answer(b"OK 0\n")
    assert workers.replies == [b"OK 0\n"]
    assert workers.links == []


def waiting() -> Workers:
    workers = Workers(wait_ms=500)
    for _ in range(3):
        workers.answer(b"OK 0\n")
    assert workers.replies == []
    assert [link.sent for link in workers.links] == [[b"PULL t.* c 3 wait=500 lease=7\n"]] * 3
    return workers


def test_the_first_that_has_something_ends_the_wait_of_the_others_which_give_back_what_they_leased() -> None:
    workers = waiting()
    first, second, third = workers.links
    second.heard([b"HELLO 1 server=x/1 max_payload=1\n", message("t.b", 1)])
    assert workers.replies == []
    second.heard([b"OK 1\n"])
    assert workers.replies == [message("t.b", 1) + b"OK 1\n"]
    assert first.finished
    first.heard([message("t.a", 3), message("t.a", 4), b"OK 2\n"])
    third.heard([b"OK 0\n"])
    given = [(worker, command) for worker, command, _ in workers.asked if isinstance(command, Nack)]
    assert given == [
        (0, Nack("t.a", "c", ((number, number),), uncounted=True, lease=7)) for number in (3, 4)
    ]  # fmt: skip
    first.ended()
    assert (len(workers.replies), workers.lost) == (1, 0)


def test_the_time_of_all_is_over() -> None:
    workers = waiting()
    for link in workers.links:
        link.heard([b"OK 0\n"])
    assert workers.replies == [b"OK 0\n"]


@pytest.mark.parametrize(("passed_s", "left_ms"), [(0.2, 300), (0.4999, 0), (0.5, 0), (9, 0)])
def test_its_time_runs_from_when_it_came(passed_s: float, left_ms: int) -> None:
    """Each PULL begins when the one before has ended. Found: twenty pipelined PULLs of a second each were answered after twenty
    seconds."""
    workers = Workers(wait_ms=500, begins=False)
    workers.now_s += passed_s
    workers.pull.begin()
    for _ in range(3):
        workers.answer(b"OK 0\n")
    if left_ms:
        assert [link.sent for link in workers.links] == [[b"PULL t.* c 3 wait=%d lease=7\n" % left_ms]] * 3
        assert workers.replies == []
    else:
        assert (workers.links, workers.replies) == ([], [b"OK 0\n"]), "each worker was asked once"


@pytest.mark.parametrize("how", ["refused", "dead", "away"])
def test_a_worker_that_does_not_answer(how: str) -> None:
    if how == "refused":
        workers = Workers()
        workers.answer(b"ERR MODE_CONFLICT it is exclusive\n")
        assert workers.replies == [b"ERR MODE_CONFLICT it is exclusive\n"]
    elif how == "dead":
        workers = waiting()
        workers.links[1].ended()
        assert workers.links[0].finished
        assert (workers.replies, workers.lost) == ([], 1)
    else:
        workers = Workers(wait_ms=9)
        workers.away = {1, 2}
        workers.answer(b"OK 0\n")
        assert (len(workers.links), workers.replies, workers.lost) == (1, [], 0), "its session ended"
        alone = Workers(begins=False)
        alone.away = {0, 1, 2}
        alone.pull.begin()
        assert (alone.replies, alone.lost) == ([b"ERR PLACEMENT_UNKNOWN worker 2 stands still\n"], 0)
        none_waits = Workers(wait_ms=9, count=1)
        none_waits.away = {0}
        none_waits.answer(b"OK 0\n")
        assert none_waits.replies == [b"ERR PLACEMENT_UNKNOWN worker 0 stands still\n"]


def test_one_that_stands_still_while_it_waits_is_not_waited_for_longer_than_the_pull_may_take() -> None:
    """Found: a PULL of two seconds was answered only when the worker went on. Messages that it leased meanwhile are given
    back."""
    workers = waiting()
    for link in workers.links[:2]:
        link.heard([b"OK 0\n"])
    assert [delay_s for delay_s, _ in workers.timers] == [0.5 + PATIENCE_S]
    workers.pass_time()
    assert workers.replies == [b"OK 0\n"]
    workers.links[2].heard([message("t.c", 1), b"OK 1\n"])
    assert [command for _, command, _ in workers.asked[3:]] == [Nack("t.c", "c", ((1, 1),), uncounted=True, lease=7)]
    assert (len(workers.replies), workers.timers) == (1, [])


def test_a_group_that_is_away_is_left_out() -> None:
    """Found: when that group was asked first, the PULL was refused although the others had messages."""
    workers = Workers(wait_ms=500)
    workers.answer(b"ERR PLACEMENT_UNKNOWN group a does not answer\n")
    for _ in range(2):
        workers.answer(b"OK 0\n")
    assert len(workers.links) == 2, "one is not waited at"
    workers.links[1].heard([message("t.b", 1), b"OK 1\n"])
    assert workers.replies == [message("t.b", 1) + b"OK 1\n"]
    alone = Workers()
    for number in range(3):
        alone.answer(b"ERR PLACEMENT_UNKNOWN group %d does not answer\n" % number)
    assert alone.replies == [b"ERR PLACEMENT_UNKNOWN group 2 does not answer\n"]


def test_one_that_does_not_answer_is_passed_over_since_leases_run() -> None:
    """Found by a trial: messages of one worker waited 20 s for another one that hung; their leases ended, and their attempts
    were used up before a client saw them."""
    workers = Workers()
    workers.answer(b"OK 0\n")
    late = workers.asked[-1]
    workers.pass_time()
    workers.answer(message("t.c", 2) + b"OK 1\n")
    assert workers.replies == [message("t.c", 2) + b"OK 1\n"]
    assert workers.timers == []
    late[2](message("t.b", 7) + message("t.b", 8) + b"OK 2\n")
    given = [(worker, command) for worker, command, _ in workers.asked if isinstance(command, Nack)]
    assert given == [
        (1, Nack("t.b", "c", ((number, number),), uncounted=True, lease=7)) for number in (7, 8)
    ]  # fmt: skip
    assert len(workers.replies) == 1


def test_the_last_that_is_there_is_waited_for() -> None:
    workers = Workers(wait_ms=500)
    for _ in range(2):
        workers.pass_time()
    workers.pass_time()
    assert (len(workers.asked), workers.replies, workers.links) == (3, [], []), "the two before it were passed over"
    workers.answer(b"OK 0\n")
    assert len(workers.links) == 1


def test_a_session_that_ends_leaves_nothing() -> None:
    workers = waiting()
    workers.pull.close()
    assert all(link.closed for link in workers.links)
