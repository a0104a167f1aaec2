"""Definitions of alert rules: quantities with units, defaults, and which rules are refused."""

import re
from dataclasses import asdict

import pytest

from toymq_py.config.alerts import Alert
from toymq_py.errors import BadArgument, RequestError

URL = {"url": "http://a/"}


def rule(**members: object) -> Alert:
    return Alert.from_json({**URL, **members})


def test_quantities_take_units_and_are_kept_as_numbers() -> None:
    age = rule(when="age", topic="t", threshold="5m", clear="90s", **{"for": "0", "repeat": "12h", "timeout": "3s"})
    assert (age.threshold, age.clear, age.for_ms, age.repeat_ms, age.timeout_ms) == (300_000, 90_000, 0, 43_200_000, 3000)
    disk = rule(when="disk", threshold="10GiB")
    assert (disk.threshold, disk.clear) == (10 << 30, 12 << 30)
    assert Alert.from_json(asdict(age)) == age, "what is stored is read"


def test_what_is_not_said_has_a_default() -> None:
    assert (rule(when="letters", topic="t").threshold, rule(when="letters", topic="t").clear) == (1, 0)
    assert rule(when="lag", topic="t", threshold=1000).clear == 800, "it does not flap around the threshold"
    assert rule(when="unattached", topic="t").for_ms == 60_000


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "when is missing"),
        ({"when": "slow", "topic": "t"}, "invalid when 'slow': write lag, age, retrying, letters, unattached, disk"),
        ({"when": "lag", "topic": "t"}, "threshold is missing: an alert on lag fires at so many messages"),
        ({"when": "lag", "threshold": 1}, "an alert on lag needs a topic, or a pattern: > is every topic"),
        ({"when": "disk", "topic": "t", "threshold": 1}, "an alert on the disk has no topic: leave it out"),
        ({"when": "letters", "topic": "t.dlq"}, "letters counts those of a topic: write t"),
        ({"when": "lag", "topic": "t", "threshold": 5, "clear": 5}, "must be below the threshold, 5: else it would flap"),
        ({"when": "disk", "threshold": 5, "clear": 5}, "must be above the threshold, 5: else it would flap"),
        ({"when": "age", "topic": "t", "threshold": "5"}, "invalid threshold '5': 5 is 5ms"),
        ({"when": "age", "topic": "t", "threshold": "5x"}, "threshold: invalid duration '5x'"),
        ({"when": "disk", "threshold": "5x"}, "threshold: invalid size '5x'"),
        ({"when": "lag", "topic": "t", "threshold": "5m"}, "invalid threshold '5m': write a whole number from 0 to"),
        ({"when": "lag", "topic": "t", "threshold": 0}, "invalid threshold '0': write a whole number from 1"),
        ({"when": "letters", "topic": "t", "repeat": "5s"}, "repeat is 5s: write 1m or more, or 0 for never"),
        ({"when": "letters", "topic": "t", "for": True}, "'for_ms' is wrong"),
        ({"when": "letters", "topic": "t", "colour": "red"}, "'colour' is wrong: an alert has when (lag, age"),
        ({"when": "letters", "topic": "t", "to": "alerts"}, "an alert goes to a url or to a topic (to): name one of them"),
        ({"when": "letters", "topic": "t", "url": None}, "an alert goes to a url or to a topic (to): name one of them"),
        ({"when": "letters", "topic": "t", "url": "ftp://a/"}, "a webhook pushes to an http or https URL"),
        ({"when": "letters", "topic": "t", "url": None, "to": "x.dlq"}, "x.dlq holds dead letters"),
        ({"when": "letters", "topic": "t", "url": None, "to": "x", "secret": "s"}, "secret signs what is posted to a url"),
        ({"when": "letters", "topic": "a*b"}, "a wildcard is a whole word"),
        ({"when": "letters", "topic": "t", "threshold": 10**400}, "threshold"),
        ({"when": "disk", "topic": None, "threshold": 10**400}, "threshold"),
        ({"when": "letters", "topic": "t", "timeout": "2m"}, "invalid timeout_ms '120000'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_makes_no_sense_is_refused_with_a_remedy(body: dict[str, object], says: str) -> None:
    with pytest.raises(RequestError, match=re.escape(says)):
        rule(**body)


@pytest.mark.parametrize("threshold", ["8", "08", f"{8:0>20}"])
def test_zeros_ahead_of_a_threshold_do_not_count(threshold: str) -> None:
    assert rule(when="lag", topic="t", threshold=threshold).threshold == 8


def test_a_threshold_is_not_cut_short() -> None:
    """Found: of a number with 21 digits the first 20 were used."""
    with pytest.raises(BadArgument, match=r"^invalid clear '000000000000000000012': write a whole number from 0 to "):
        rule(when="lag", topic="t", threshold="8", clear=f"{12:0>21}")


def test_a_new_secret_has_enough_bytes_and_is_never_shown() -> None:
    stored = rule(when="letters", topic="t", secret="whsec_YQ==")
    with pytest.raises(BadArgument, match="the secret has 1 bytes behind whsec_ and needs 16"):
        stored.check_secret()
    assert (stored.public()["secret"], rule(when="letters", topic="t").public()["secret"]) == ("(set)", None)


def test_values_are_shown_with_their_unit() -> None:
    assert rule(when="lag", topic="t", threshold=9).shown(1234) == "1234 messages"
    assert [rule(when="age", topic="t", threshold="1m").shown(ms) for ms in (250, 61_500, 120_999)] == ["250ms", "61s", "2m"]
    assert [rule(when="disk", threshold=1).shown(size) for size in (10 << 30, 1_600_000_000, 12)] == ["10GiB", "1.5GiB", "12B"]
