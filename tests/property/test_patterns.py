"""Whether two topic patterns can match the same name, against all names of a small world."""

from itertools import product

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.shares import examples
from toymq_py.names import TopicPattern

WORDS = ("a", "b", "dlq", "")
NAMES = [".".join(words) for length in range(1, 6) for words in product(WORDS, repeat=length) if words[0]]
"""One word longer than the longest pattern: ``>`` may stand for two."""

words = st.sampled_from(["a", "dlq", "", "*", "*"])
patterns = st.builds(
    lambda first, rest, last: ".".join([first, *rest, *last]),
    st.sampled_from(["a", "b", "dlq", "*"]),
    st.lists(words, max_size=2),
    st.sampled_from([[], ["*"], [">"]]),
) | st.just(">")
bounded = settings(max_examples=examples(300), derandomize=True, deadline=None, database=None)


@bounded
@given(patterns, patterns)
@example("a.>", "a.*.dlq")
@example("a.*", "*.dlq")
@example(">", "dlq")
@example("*.>", "a..>")
def test_patterns_overlap_when_there_is_a_name_that_both_match(one: str, two: str) -> None:
    first, second = TopicPattern(one), TopicPattern(two)
    both = [name for name in NAMES if first.matches(name) and second.matches(name)]
    assert first.overlaps(second) == second.overlaps(first) == bool(both), f"{both[:3]} match both"


@bounded
@given(patterns, st.sampled_from(NAMES))
def test_a_pattern_overlaps_the_names_that_it_matches(pattern: str, name: str) -> None:
    assert TopicPattern(pattern).overlaps(name) == TopicPattern(pattern).matches(name)
