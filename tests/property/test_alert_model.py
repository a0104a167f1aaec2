"""Alert rules against any values at any times: which alerts are sent, how often, and how many may wait."""

from hypothesis import given
from hypothesis import strategies as st

from toymq_py.config.alerts import Alert
from toymq_py.gateway.alert_states import AlertStates, Notice, Reading

ALERTS = [Alert("lag", ">", 10, 5, for_ms=for_ms, repeat_ms=60_000, url="http://a/") for for_ms in (0, 3000)]
TOPICS = ("a", "b")
VALUES: tuple[dict[str, int], ...] = ({"a": 0}, {"a": 10}, {"a": 10}, {"a": 7}, {"a": 5, "b": 10}, {"a": 10, "b": 0}, {})
"""Of the topics that are there."""
steps = st.lists(
    st.tuples(
        st.sampled_from((0, 1, 3, 61)),  # seconds since the one before
        st.sampled_from(VALUES),
        st.sampled_from((0, 0, 1, 2)),  # notices that are sent afterwards
        st.sampled_from((True, True, False)),  # and whether the last of them is taken
    ),
    min_size=20,
    max_size=60,
)


@given(st.sampled_from(ALERTS), steps)
def test_every_beginning_that_was_told_has_an_end_and_nothing_else_has(
    alert: Alert, given_steps: list[tuple[int, dict[str, int], int, bool]],
) -> None:  # fmt: skip
    states, now = AlertStates(alert), 0
    since: dict[str, int] = {}
    open_since: dict[str, int] = {}
    told: dict[str, int] = {}
    """Topics whose receiver may think that they fire, and when they were told."""
    for passed, values, sent, taken in given_steps:
        now += passed
        said: list[Notice | None] = [states.look(topic, Reading(value), now, now * 1000) for topic, value in values.items()]
        said += states.end_pass(now * 1000)
        for topic in TOPICS:
            if topic not in open_since:
                if values.get(topic, 0) >= alert.threshold:
                    since.setdefault(topic, now)
                else:
                    since.pop(topic, None)
        for notice in filter(None, said):
            topic = notice.subject
            if notice.state == "firing":
                assert topic not in open_since, "it fires once"
                assert (now - since[topic]) * 1000 >= alert.for_ms, "it has lasted"
                assert values[topic] >= alert.threshold
                open_since[topic] = since.pop(topic)
            else:
                assert topic not in values or values[topic] <= alert.clear
                del open_since[topic]
                if topic in values and values[topic] >= alert.threshold:
                    since[topic] = now
        assert states.firing == len(open_since)
        assert {topic for topic, trouble in states.troubles.items() if trouble.firing} == set(open_since)
        assert states.due <= len(TOPICS), "at most one notice of a topic waits"
        for number in range(sent):
            if (due := states.next_due()) is None:
                break
            topic = due.subject
            if due.state == "firing":
                assert topic in open_since, "what is over is not told to begin"
                assert topic not in told or now - told[topic] >= 0
                told[topic] = now
            else:
                assert topic in told, "an end is told of what was told to begin"
                if taken or number < sent - 1:
                    del told[topic]
            if not taken and number == sent - 1:
                break
            states.settle(due)
    while (due := states.next_due()) is not None:
        states.settle(due)
        if due.state == "resolved":
            del told[due.subject]
        else:
            told[due.subject] = now
    assert set(told) == set(open_since), "the receiver knows what fires, and no more"
