"""Simulated brokers with several workers: every promise is kept, whatever is killed; and mutants of the code between workers
are caught."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from tests.simulation.__main__ import main
from tests.simulation.workers import Plan, run, shrink
from toymq_chaos.verdict import Verdict
from toymq_py.errors import DataDirectoryError
from toymq_py.placement import Placement
from toymq_py.protocol import Command, Publish, encode_command
from toymq_py.session.passed_on import Expected, WorkerLink
from toymq_py.session.passing import Passing
from toymq_py.session.place_links import PlaceLinks
from toymq_py.session.replies import PendingReply, Replies
from toymq_py.storage.offline import redistribute

pytestmark = [
    pytest.mark.usefixtures("without_log"),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]
WORLDS = (0, 1, 2, 6)
"""Worlds in which all that is looked for occurs; choose others when the worlds have changed."""
SEVERAL_LIVES = Plan()
ONE_LIFE = Plan(lives=1)
"""The number of workers does not change."""


def test_every_promise_is_kept() -> None:
    done: Counter[str] = Counter()
    numbers: set[int | None] = set()
    total = Verdict()
    for seed in WORLDS:
        events, verdict = run(seed)
        assert verdict.ok, f"seed {seed}: {verdict.violations[0]}"
        total.kills += verdict.kills
        done.update(event.op for event in events if event.result == "ok")
        done.update("letter" for event in events if event.op == "deliver" and event.origin_id is not None)
        done.update("moved" for event in events if event.note == "MOVED")
        done.update("kill of a worker" for event in events if event.op == "kill" and event.worker is not None)
        numbers |= {event.workers for event in events if event.op == "start"}
    assert total.kills > len(WORLDS)
    assert done["kill of a worker"] > len(WORLDS) / 2
    assert numbers == {1, 2, 3}
    for op in ("pull", "letter", "redrive", "config", "delete", "moved"):
        assert done[op] > 1, f"{op} occurs: {done}"


@pytest.mark.torture
def test_every_promise_is_kept_in_many_worlds() -> None:
    for seed in range(100_000, 100_000 + int(os.environ.get("TOYMQ_SEEDS", "2000"))):
        _, verdict = run(seed)
        assert verdict.ok, f"seed {seed}: {verdict.violations[0]}"


def test_the_same_seed_is_the_same_history() -> None:
    first, _ = run(4711)
    second, _ = run(4711)
    assert [event.to_json() for event in first] == [event.to_json() for event in second]


def test_the_command_runs_worlds() -> None:
    result = CliRunner().invoke(main, ["--workers", "--seeds", "1"])
    assert result.exit_code == 0, result.output
    assert "1 worlds" in result.output


def caught(promise: str, seeds: int = 12, plan: Plan = SEVERAL_LIVES, first: int = 0) -> bool:
    """Whether some world finds that a mutant breaks a promise. Where that is rare, ``first`` is near the world that does: look
    again from 0 when the worlds have changed."""
    for seed in range(first, first + seeds):
        _, verdict = run(seed, plan)
        if any(promise in violation.promise for violation in verdict.violations):
            return True
    return False


LOST = "an acknowledged message never came to"


def test_a_worker_that_serves_the_topics_of_others_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Placement, "worker_of", lambda self, topic: self.worker)
    assert caught(LOST, plan=ONE_LIFE)
    with pytest.raises(ExceptionGroup) as refused:
        caught(LOST)
    assert refused.group_contains(DataDirectoryError, match="topic .* is in .* and in .*"), "`toymq workers --set` says so"


def test_the_plan_of_a_world_that_fails_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Placement, "worker_of", lambda self, topic: self.worker)
    plan, verdict = shrink(0, ONE_LIFE)
    assert verdict.violations
    assert plan.kills == 1
    assert plan.messages < ONE_LIFE.messages


@pytest.fixture
def passed_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[PendingReply]]:
    """Return the set of replies that wait for the answer to a command that was passed on to another worker."""
    found: set[PendingReply] = set()
    send = PlaceLinks.send

    def noted(self: PlaceLinks, worker: WorkerLink, pieces: list[bytes], expected: Expected) -> None:
        if expected.held is not None and expected.share is None:
            found.add(expected.held)
        send(self, worker, pieces, expected)

    monkeypatch.setattr(PlaceLinks, "send", noted)
    return found


def test_a_pass_that_answers_twice_is_caught(monkeypatch: pytest.MonkeyPatch, passed_on: set[PendingReply]) -> None:
    fill = Replies.fill

    def twice(self: Replies, held: PendingReply, make: Callable[[], bytes | None]) -> None:
        def doubled() -> bytes | None:
            data = make()
            return data * 2 if data is not None and data.startswith(b"OK") else data

        fill(self, held, doubled if held in passed_on else make)

    monkeypatch.setattr(Replies, "fill", twice)
    with pytest.raises(ExceptionGroup) as found:  # a client gets a reply that belongs to none of its commands
        caught("one id was given to two keys")
    assert found.group_contains(IndexError, match="pop from an empty deque")


def test_a_missing_reply_that_is_made_up_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def made_up(self: PlaceLinks, held: PendingReply | None) -> None:
        if held is not None:
            self._replies.fill(held, lambda: b"OK 0\n")

    monkeypatch.setattr(PlaceLinks, "lost_reply", made_up)
    assert caught("one id was given to two keys", 40)


def test_a_subscription_that_outlives_its_worker_in_silence_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_silence(self: PlaceLinks, place: int, worker: WorkerLink) -> None:
        self.open.pop(place, None)
        for expected in worker.expected:
            if expected.held is not None:
                self.lost_reply(expected.held)

    monkeypatch.setattr(PlaceLinks, "_lost", in_silence)
    assert caught(LOST, plan=ONE_LIFE, first=40)


def test_a_pattern_of_one_worker_alone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Passing, "_take_pattern", lambda self, command: False)
    assert caught(f"{LOST} everyone", first=8)


def test_a_command_that_is_refused_with_moved_and_done_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Passing.take

    def both(self: Passing, command: Command, refused: Any) -> bool:
        taken = take(self, command, refused)
        if not taken and self._follows and isinstance(command, Publish):
            place = self._place(command.topic)
            if place != self._placement.worker:
                self.links.send(self.links.to(place, command), [encode_command(command)], Expected(None, len(command.keys)))
        return taken

    monkeypatch.setattr(Passing, "take", both)
    assert caught("a key that was never published was answered DUP", 40)


def test_a_division_that_puts_topics_into_a_wrong_place_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redistribute, "worker_of", lambda topic, number: 0)
    assert caught(LOST, first=26)


def test_a_division_that_forgets_to_sync_its_renames_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut may leave a topic at its old place, where nothing looks for it."""
    real = redistribute.redistribute

    def forgetful(fs: Any, *rest: Any) -> None:
        monkeypatch.setattr(fs, "sync_dir", lambda path: None)
        real(fs, *rest)

    monkeypatch.setattr("tests.simulation.workers.redistribute", forgetful)
    try:
        found = caught(LOST, 60, first=4)
    except ExceptionGroup as error:  # the directory of a worker is gone with its name, which is refused
        found = error.subgroup(DataDirectoryError) is not None
    assert found


