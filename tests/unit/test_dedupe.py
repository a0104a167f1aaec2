"""The dedupe table, compared with a model. Contract: delivery.md, "Dedupe"."""

from collections import OrderedDict
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.shares import examples
from toymq_py.dedupe import JOINED_MAX, DedupeTable, KeyBudget

KEYS = [b"k%d" % n for n in range(8)]
verbs = st.sampled_from(["publish", "refused", "hit", "fail", "commit", "resize", "clear"])
operations = st.lists(st.tuples(verbs, st.lists(st.sampled_from(KEYS), max_size=4)), max_size=60)


@given(operations, st.integers(0, 6), st.sampled_from([(1, 1), (2, 3), (16, 1024)]))
@settings(max_examples=examples(500))
def test_it_is_a_least_recently_used_map(
    ops: list[tuple[str, list[bytes]]], capacity: int, run_lengths: tuple[int, int]
) -> None:
    with patch("toymq_py.dedupe.LONG_RUN", run_lengths[0]), patch("toymq_py.dedupe.JOINED_MAX", run_lengths[1]):
        hold_to_the_model(ops, capacity)


def hold_to_the_model(ops: list[tuple[str, list[bytes]]], capacity: int) -> None:
    budget = KeyBudget(1 << 62)
    table = DedupeTable(capacity, budget)
    model: OrderedDict[bytes, int] = OrderedDict()
    next_id = 0
    for op, keys in ops:
        if op == "publish" and keys:
            fresh = len(set(keys)) == len(keys) and not set(keys) & set(model)
            assert table.remember_new(keys, next_id) is fresh
            for key in keys:
                if not fresh:
                    table.replace(key, next_id)
                    model.pop(key, None)
                model[key] = next_id
                next_id += 1 if fresh else 0
            next_id += 0 if fresh else 1
        elif op == "refused":
            if keys and len(set(keys)) == len(keys) and not set(keys) & set(model):
                assert table.remember_new(keys, next_id)
                table.withdraw(keys)
                assert not table._pending or table._pending[-1][0] < next_id, "nothing waits for it"
        elif op == "hit":
            for key in keys:
                if table.find(key) is not None:
                    table.touch(key)
                    model.move_to_end(key)
        elif op == "fail":
            table.settle(next_id)
            while len(model) > table.capacity:
                model.popitem(last=False)
            table.forget(keys)
            for key in keys:
                model.pop(key, None)
        elif op == "commit":
            table.settle(next_id)
            while len(model) > table.capacity:
                model.popitem(last=False)
        elif op == "resize":
            table.settle(next_id)
            while len(model) > table.capacity:
                model.popitem(last=False)
            table.resize(len(keys))
            while len(model) > len(keys):
                model.popitem(last=False)
        elif op == "clear":
            table.clear()
            model.clear()
        assert {key: table.find(key) for key in KEYS if table.find(key) is not None} == dict(model)
        assert len(table) == len(model) == budget.used


def test_a_key_that_is_hit_for_ever_does_not_fill_the_memory() -> None:
    table = DedupeTable(4)
    table.remember_new([b"a", b"b"], 0)
    for _ in range(10_000):
        table.touch(b"a")
    assert sum(map(len, table._order)) == table._ordered < 100
    table.remember_new([b"c", b"d", b"e"], 2)
    table.settle(5)
    assert table.find(b"a") == 0
    assert table.find(b"b") is None, "b was the oldest"


def test_keys_that_are_given_leave_the_memory_a_piece_at_a_time() -> None:
    """Expired keys of clients are freed in pieces, also after a rebuild, which leaves one run."""
    table = DedupeTable(5000)
    keys = [b"%d" % n for n in range(5000)]
    table.remember_new(keys, 0)
    table.settle(5000)
    table.forget([b"0"])
    table.resize(100)
    assert sum(map(len, table._order)) <= 100 + JOINED_MAX


def test_all_topics_share_a_budget_and_the_largest_gives() -> None:
    budget = KeyBudget(10)
    one, two = DedupeTable(100, budget), DedupeTable(100, budget)
    one.remember_new([b"%d" % n for n in range(10)], 0)
    one.settle(10)
    two.remember_new([b"k"], 0)
    two.settle(1)
    assert two.find(b"k") == 0, "a topic does not pay for what others hold"
    assert (len(one), len(two), budget.used) == (9, 1, 10)
    assert one.find(b"0") is None
    two.clear()
    assert budget.used == 9


def test_nothing_is_evicted_before_the_commit() -> None:
    table = DedupeTable(1)
    table.remember_new([b"a"], 0)
    table.settle(1)
    table.remember_new([b"b"], 1)
    assert (table.find(b"a"), table.find(b"b")) == (0, 1)
    table.forget([b"b"])
    table.fail()
    table.settle(1)
    assert table.find(b"a") == 0, "the batch failed: no key was pushed out for it"


def test_a_batch_that_waits_pushes_nobody_out_when_another_commits() -> None:
    table = DedupeTable(2)
    table.remember_new([b"a", b"b"], 0)
    table.remember_new([b"c", b"d"], 2)
    table.settle(2)
    assert [table.find(key) for key in (b"a", b"b", b"c", b"d")] == [0, 1, 2, 3]
    table.forget([b"c", b"d"])
    table.fail()
    table.settle(2)
    assert (table.find(b"a"), table.find(b"b")) == (0, 1)


def test_a_smaller_capacity_leaves_what_has_not_committed() -> None:
    table = DedupeTable(5)
    table.remember_new([b"a"], 0)
    table.settle(1)
    table.remember_new([b"b", b"c"], 1)
    table.resize(0)
    assert [table.find(key) for key in (b"a", b"b", b"c")] == [None, 1, 2]
