"""Definitions as files. Contract: clients.md, "Command lines" (--definitions); delivery.md, "Per-topic settings"."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.shares import examples
from toymq_py.config.alerts import Alert
from toymq_py.config.definitions import (
    Definitions,
    PutAlert,
    PutWebhook,
    change_to_json,
    described,
    done_before,
    parse,
    plan,
    to_json,
    to_toml,
)
from toymq_py.config.topic_definitions import ChangeSettings, CreateTopic, MakeConsumer, TopicDefinition
from toymq_py.config.webhooks import CONCURRENCY_MAX, NAME_MAX, SIGNED, TIMEOUT_MS_MAX, Webhook
from toymq_py.consumer_options import EARLIEST, LATEST, OLDEST_MS, Start
from toymq_py.errors import ConfigError
from toymq_py.setting_units import SETTINGS
from toymq_py.units import DURATION_MS_MAX

TEXT = """
[[topic]]
name = "orders.eu"
visibility = "2m"
retain_acked_for = 604800000
dedupe_keys = "default"

[[topic.consumer]]
name = "billing"
start = "latest"

[[topic.consumer]]
name = "audit"

[[topic]]
name = "plain"
"""
WANTED = Definitions(
    {
        "orders.eu": TopicDefinition(
            {"visibility": "120000", "retain_acked_for": "604800000"}, {"billing": LATEST, "audit": EARLIEST}
        ),
        "plain": TopicDefinition({}, {}),
    }
)


def test_a_file_is_read_and_written() -> None:
    assert parse(TEXT, "x") == WANTED
    assert parse(to_toml(WANTED), "x") == WANTED
    assert parse(to_json(WANTED), "x") == WANTED
    assert parse("", "x") == parse("{}", "x") == Definitions()
    assert 'retain_acked_for = "7d"\n' in to_toml(WANTED)
    assert '"retain_acked_for": 604800000' in to_json(WANTED)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a =", "x: neither TOML nor JSON: "),
        ("{", "x: neither TOML nor JSON: "),
        ("[[topics]]", "x: there is no section topics; did you mean topic?"),
        ("[[queues]]", "x: there is no section queues; did you mean queue"),
        ('topic = "orders"', "x: topic is an array of tables: [[topic]] in TOML"),
        ('[topic.orders]\nvisibility = "1s"', "x: topic is an array of tables"),
        ("[[topic]]", "x: topic number 1: it needs a name"),
        ('[[topic]]\nname = "a"\n[[topic]]\nname = 1', "x: topic number 2: it needs a name"),
        ('[[topic]]\nname = "../a"', "x: topic ../a: topic name must be"),
        ('[[topic]]\nname = "a"\n[[topic]]\nname = "a"', "x: topic a stands twice"),
        ('[[topic]]\nname = "a"\nvisiblity = "1s"', "x: topic a: visiblity is not a topic setting; did you mean visibility?"),
        ('[[topic]]\nname = "a"\n[[topic.consumers]]', "x: topic a: consumers is not a topic setting; did you mean consumer?"),
        ('[[topic]]\nname = "a"\ncolour = 1', "x: topic a: colour is not a topic setting; there are visibility, "),
        ('[[topic]]\nname = "a"\nvisibility = "soon"', "x: topic a: visibility: invalid duration 'soon'"),
        ('[[topic]]\nname = "a"\nvisibility = 0', "x: topic a: visibility: invalid visibility '0': write a whole number"),
        ('[[topic]]\nname = "a"\nvisibility = true', "x: topic a: visibility: neither text nor a number within"),
        ('[[topic]]\nname = "a"\nvisibility = 0x' + "f" * 9000, "x: topic a: visibility: neither text nor a number"),
        ('[[topic]]\nname = "a"\nconsumer = [{name = "b", start = 0x' + "f" * 9000 + "}]", "consumer b: start: neither"),
        ('[[topic]]\nname = "a\\nb"', "x: topic number 1: topic name must be"),
        ('"a\\nb" = 1', "x: there is no section 'a\\nb'; there are topic"),
        ('[[topic]]\nname = "a"\nvisibility = -1', "x: topic a: visibility: invalid duration '-1'"),
        ('[[topic]]\nname = "a"\nnack_backoff_min = "2s"\nnack_backoff_max = "1s"', "x: topic a: nack_backoff_min is above"),
        ('[[topic]]\nname = "a"\nconsumer = "b"', "x: topic a: consumer is an array of tables"),
        ('[[topic]]\nname = "a"\n[[topic.consumer]]\nname = "#b"', "x: topic a: consumer #b: consumer name must be"),
        ('[[topic]]\nname = "a"\n[[topic.consumer]]\nname = "b"\nwindow = 1', "consumer b: a consumer has name and start, not"),
        ('[[topic]]\nname = "a"\n[[topic.consumer]]\nname = "b"\nstart = "soon"', "consumer b: start: invalid position 'soon'"),
        ('[[topic]]\nname = "a"\n[[topic.consumer]]\nname = "b"\nstart = true', "topic a: consumer b: start: neither text nor"),
        ('[[topic]]\nname = "a"\nconsumer = [{name = "b"}, {name = "b"}]', "topic a: consumer b stands twice"),
        ('[[webhook]]\nname = "h"\ntopic = "a"', "x: webhook h: a webhook has a topic and a url"),
        ('[[webhook]]\ntopic = "a"\nurl = "http://a.example/"', "x: webhook number 1: it needs a name"),
        ('[[webhook]]\nname = "h"\ntopic = "a"\nurl = "ftp://a"', "x: webhook h: a webhook pushes to an http or https URL"),
        ('[[webhook]]\nname = "h"\ntopic = "a"\nurl = "http://a.example/"\n"b\\n" = 1', "webhook h: 'b\\n' is wrong"),
        (f'[[webhook]]\nname = "{"h" * 181}"\ntopic = "a"\nurl = "http://a.example/"', "has at most 180 characters"),
        ('[[webhook]]\nname = "h"\ntopic = "a"\nurl = "http://a.example/"\nsecret = "whsec_!"', "follows whsec_ is base64"),
        (2 * '[[webhook]]\nname = "h"\ntopic = "a"\nurl = "http://a.example/"\n', "x: webhook h stands twice"),
    ],
)
def test_what_is_wrong_is_named(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, "x")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plan_has_what_is_missing_and_no_more() -> None:
    assert plan(WANTED, WANTED) == []
    assert plan(Definitions(), WANTED) == [], "what the file does not name is left alone"
    assert plan(WANTED, Definitions()) == [
        CreateTopic("orders.eu", {"visibility": "120000", "retain_acked_for": "604800000"}),
        MakeConsumer("orders.eu", "billing", LATEST),
        MakeConsumer("orders.eu", "audit", EARLIEST),
        CreateTopic("plain", {}),
    ]
    present = Definitions(
        {
            "orders.eu": TopicDefinition({"visibility": "1", "dedupe_keys": "7"}, {"billing": EARLIEST, "other": EARLIEST}),
            "plain": TopicDefinition({}, {}),
        }
    )
    assert plan(WANTED, present) == [
        ChangeSettings(
            "orders.eu",
            {"visibility": "120000", "retain_acked_for": "604800000", "dedupe_keys": "default"},
            {"visibility": "1", "retain_acked_for": "default", "dedupe_keys": "7"},
        ),
        MakeConsumer("orders.eu", "audit", EARLIEST),
    ]


def test_changes_are_shown_with_units() -> None:
    assert str(CreateTopic("a", {"visibility": "120000", "dedupe_keys": "5"})) == "+ topic a visibility=2m dedupe_keys=5"
    before = {"visibility": "default", "dedupe_keys": "5"}
    change = ChangeSettings("a", {"visibility": "1500", "dedupe_keys": "default"}, before)
    assert str(change) == "~ topic a visibility=default -> 1500ms, dedupe_keys=5 -> default"
    assert str(MakeConsumer("a", "b", Start("time", 5))) == "+ consumer a b start=@5"


def row(topic: str, **more: Any) -> dict[str, Any]:
    return {"topic": topic, "settings": {}, "consumers": [], **more}


def test_what_a_broker_has() -> None:
    rows = [row("b", settings={"visibility": 5}), row("a", consumers=[{"consumer": "#redrive"}, {"consumer": "x"}])]
    found = described(rows, {})
    assert list(found.topics) == ["a", "b"], "in the order of the alphabet: a repository shows changes only"
    assert found.topics["a"] == TopicDefinition({}, {"x": EARLIEST}), "the broker's own consumers are no definition"
    assert found.topics["b"] == TopicDefinition({"visibility": "5"}, {})
    with pytest.raises(ConfigError, match="topic c: EIO"):
        described([row("c", problem="EIO")], {})


names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True)
starts = st.one_of(
    st.sampled_from([EARLIEST, LATEST]),
    st.integers(0, 2**64 - 1).map(lambda value: Start("id", value)),
    st.integers(OLDEST_MS, 2**63 // 1_000_000).map(lambda value: Start("time", value)),
)


@st.composite
def some_settings(draw: st.DrawFn) -> dict[str, str]:
    settings = {}
    for name in draw(st.sets(st.sampled_from(sorted(SETTINGS)))):
        limits = SETTINGS[name]
        low, high = limits[0], limits[-1]
        if isinstance(low, int) and isinstance(high, int):
            minutes = st.integers(1, min(10, high // 60_000)).map(lambda count: count * 60_000)
            settings[name] = str(draw(st.integers(low, high) | minutes))
        else:
            settings[name] = str(draw(st.sampled_from(limits)))
    if int(settings.get("nack_backoff_min", 0)) > int(settings.get("nack_backoff_max", DURATION_MS_MAX)):
        del settings["nack_backoff_min"]
    return settings


topic_definitions = st.builds(TopicDefinition, some_settings(), st.dictionaries(names, starts, max_size=3))


SECRET = "whsec_" + "c2VjcmV0"
HOOK = Webhook("orders.*", 'https://example.com/a?b="c"\\d', timeout_ms=500)


LATE = Alert("lag", "orders.*", 100, 80, url="https://example.com/", for_ms=60_000)


def test_an_alert_is_read_written_and_put_as_a_webhook_is() -> None:
    text = '[[alert]]\nname = "late"\nwhen = "lag"\ntopic = "orders.*"\nthreshold = 100\nfor = "1m"\nurl = "https://example.com/"\n'
    wanted = parse(text, "x")
    assert wanted.alerts == {"late": LATE}
    full = Definitions(alerts={"late": LATE, "full": Alert("disk", None, 1 << 30, 1 << 31, to="alerts")})
    for written in (to_toml(full), to_json(full)):
        assert parse(written, "x") == full
    (new,) = plan(wanted, Definitions())
    assert str(new) == "+ alert late lag orders.* 100 to https://example.com/"
    assert plan(wanted, wanted) == []
    signed = replace(LATE, secret="s")
    (changed,) = plan(wanted, Definitions(alerts={"late": replace(signed, threshold=200)}))
    assert isinstance(changed, PutAlert)
    assert (str(changed), changed.alert.secret) == ("~ alert late threshold=200 -> 100", "s")
    (moved,) = plan(Definitions(alerts={"late": replace(LATE, url=None, to="alerts")}), Definitions(alerts={"late": signed}))
    assert isinstance(moved, PutAlert)
    assert (str(moved), moved.alert.secret) == ("~ alert late to=None -> alerts, url=https://example.com/ -> None", None)
    assert change_to_json(PutAlert("late", signed, None))["secret"] == "(set)"
    for bad, says in (
        ('[[alert]]\nname = "late"', "x: alert late: when is missing"),
        (2 * text, "x: alert late stands twice"),
        ('[[alert]]\nwhen = "disk"', "x: alert number 1: it needs a name"),
    ):
        with pytest.raises(ConfigError, match=says):
            parse(bad, "x")


def test_a_webhook_is_put_when_it_is_missing_differs_or_has_no_secret() -> None:
    """A signed webhook keeps its secret: a definition does not contain one, so it cannot be compared."""
    signed, shown = replace(HOOK, secret=SECRET), replace(HOOK, secret=SIGNED)
    for wanted, present, put in (
        (HOOK, None, HOOK), (signed, None, signed), (HOOK, HOOK, None), (HOOK, shown, None), (signed, shown, None),
        (signed, HOOK, signed), (replace(HOOK, concurrency=2), signed, replace(signed, concurrency=2)),
        (replace(signed, concurrency=2), shown, replace(signed, concurrency=2)),
    ):  # fmt: skip
        there = {"other": HOOK} | ({"h": present} if present is not None else {})
        changes = plan(Definitions(webhooks={"h": wanted}), Definitions(webhooks=there))
        assert changes == ([PutWebhook("h", put, present)] if put is not None else []), (wanted, present)
        for change in changes:
            assert SECRET not in f"{change} {change!r} {change_to_json(change)}"
    assert str(PutWebhook("h", signed, None)) == f"+ webhook h orders.* {HOOK.url} signed"
    assert str(PutWebhook("h", signed, HOOK)) == "~ webhook h signed"
    assert str(PutWebhook("h", replace(HOOK, concurrency=2), HOOK)) == "~ webhook h concurrency=1 -> 2"


urls = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#@[]"), max_size=20).map(
    lambda tail: f"https://example.com/{tail}"
)
webhooks = st.builds(Webhook, names, urls, st.none(), st.integers(1, TIMEOUT_MS_MAX), st.integers(1, CONCURRENCY_MAX))


@settings(max_examples=examples(40))
@given(
    st.dictionaries(names, topic_definitions, max_size=4),
    st.dictionaries(names.filter(lambda name: len(name) <= NAME_MAX), webhooks, max_size=2),
)
def test_whatever_is_written_is_read_as_it_was(topics: dict[str, TopicDefinition], hooks: dict[str, Webhook]) -> None:
    definitions = Definitions(topics, hooks)
    assert parse(to_toml(definitions), "x") == definitions
    assert parse(to_json(definitions), "x") == definitions
    assert plan(definitions, definitions) == []


@given(st.text(max_size=200) | st.sampled_from(["{", '{"topic": ', '[[topic]]\nname = "a"\n']).flatmap(
    lambda begin: st.text(max_size=60).map(lambda rest: begin + rest)
))  # fmt: skip
def test_any_text_is_definitions_or_an_error_that_says_where(text: str) -> None:
    try:
        parse(text, "somewhere")
    except ConfigError as error:
        said = str(error)
    else:
        return
    assert said.startswith("somewhere: ")


def test_a_duration_without_its_unit_is_asked_about() -> None:
    """Found by a trial: an import made `visibility = 30` 30 ms, silently. In JSON, as exported, it is milliseconds."""
    text = '[[topic]]\nname = "a"\nvisibility = 30\nttl = "500"\nretain_acked_for = 0\nnack_backoff_min = 50\n'
    rule = "as a number without a unit is milliseconds: write"
    assert parse(text, "f").doubts == [
        f"f: topic a: visibility 30 is 30ms, {rule} 30s or 30ms",
        f"f: topic a: ttl 500 is 500ms, {rule} 500s or 500ms",
    ]
    assert parse(text.replace("30", "30000").replace("500", "500ms"), "f").doubts == []
    assert parse(to_json(parse(text, "f")), "f").doubts == []


def test_an_error_names_what_was_changed_before_it() -> None:
    assert done_before([]) == ""
    made = [CreateTopic("a", {"visibility": "120000"}), MakeConsumer("a", "b", EARLIEST)]
    assert done_before(made) == "; changed before that: + topic a visibility=2m; + consumer a b start=earliest"
