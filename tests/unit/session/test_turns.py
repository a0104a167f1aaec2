"""Shares of a loop pass: what one session may take while others are at work."""

import random

from tests.support.fake_clock import FakeClock
from tests.support.sim_event_loop import SimEventLoop
from toymq_py.session.turns import FEW, LEAVES_PER_PASS, MAKERS_PER_PASS, PASS_S, SLICE_MIN_S, SLICE_S, Turns


def one_pass(loop: SimEventLoop) -> None:
    loop.call_soon(loop.stop)
    loop.run_forever()


def turns_on_a_loop() -> tuple[Turns, SimEventLoop]:
    loop = SimEventLoop(random.Random(1))
    return Turns(FakeClock(monotonic_s=0.0), loop), loop


def test_the_more_are_busy_the_shorter_the_slice() -> None:
    turns, loop = turns_on_a_loop()
    slices = []
    for turns.busy in (0, 1, FEW, 20, 10_000):
        slices.append(turns.slice_end())
    assert slices == [SLICE_S, SLICE_S, SLICE_S, PASS_S / 20, SLICE_MIN_S]
    loop.close()


def test_a_crowd_leaves_in_order_some_in_each_pass() -> None:
    turns, loop = turns_on_a_loop()
    gone: list[int] = []
    for number in range(2 * LEAVES_PER_PASS + 5):
        turns.leave(lambda number=number: gone.append(number))  # type: ignore[misc]
    assert gone == [], "not at once"
    sizes = []
    for _ in range(4):
        one_pass(loop)
        sizes.append(len(gone))
    assert sizes == [LEAVES_PER_PASS, 2 * LEAVES_PER_PASS, 2 * LEAVES_PER_PASS + 5, 2 * LEAVES_PER_PASS + 5]
    assert gone == sorted(gone)
    turns.leave(lambda: gone.append(-1))
    one_pass(loop)
    assert gone[-1] == -1
    loop.close()


class Maker:
    """A writer with something to make in every pass that lets it."""

    def __init__(self, turns: Turns) -> None:
        self.made = 0
        self._turns = turns
        self._again = lambda: None

    def work(self) -> None:
        self.made += self._turns.may_make(self._again)


def test_some_make_replies_in_a_pass_and_all_get_their_turn() -> None:
    turns, loop = turns_on_a_loop()
    makers = [Maker(turns) for _ in range(3 * MAKERS_PER_PASS)]
    for n in range(30):
        before = sum(maker.made for maker in makers)
        for maker in makers:
            maker.work()
        assert sum(maker.made for maker in makers) - before <= MAKERS_PER_PASS, f"pass {n}"
        one_pass(loop)
    counts = [maker.made for maker in makers]
    assert sum(counts) >= 28 * MAKERS_PER_PASS
    assert max(counts) - min(counts) <= 2, "first come, first served"
    loop.close()


def test_who_was_admitted_and_does_not_come_holds_nobody_up() -> None:
    turns, loop = turns_on_a_loop()
    rude = [Maker(turns) for _ in range(2 * MAKERS_PER_PASS)]
    for maker in rude:
        maker.work()  # half of them wait, and never ask again
    one_pass(loop)
    one_pass(loop)
    late = Maker(turns)
    late.work()
    assert late.made == 1
    loop.close()
