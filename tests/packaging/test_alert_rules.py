"""The rules of deploy/prometheus/alerts.yml about consumers and leaders, evaluated on scrapes of brokers.

promtool is not needed: the few operators of these rules are evaluated below."""

import operator
import re
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.broker_process import ROOT
from tests.support.broker_rig import BrokerRig
from toymq_py.cluster.group_views import rows
from toymq_py.metrics import ClusterRows
from toymq_py.observability.prometheus import render, render_cluster
from toymq_py.replication.agreement import LeaderKey, Member
from toymq_py.replication.kept_places import Group, Picture

GROUPS = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"]
RULES = {rule["alert"]: rule["expr"] for group in GROUPS for rule in group["rules"]}
COMPARED = {"==": operator.eq, ">": operator.gt}
ADDED_UP = {"sum": sum, "max": max}


async def firing(rig: BrokerRig, alert: str) -> set[str]:
    """Return the consumers for which a rule of the form ``metric == 0 and metric > 0``, or one of the two, holds now."""
    body, _ = await render(rig.broker, rig.clock)
    samples = [sample for family in text_string_to_metric_families(body.decode()) for sample in family.samples]
    found = []
    for term in RULES[alert].split(" and "):
        asked = re.fullmatch(r"(\w+) (==|>) (\d+)", term)
        assert asked is not None, f"{term} has an operator that this test does not know"
        name, compared, value = asked.groups()
        rows = [sample for sample in samples if sample.name == name]
        assert rows, f"{name} has no samples"
        found.append({row.labels["consumer"] for row in rows if COMPARED[compared](row.value, int(value))})
    return set.intersection(*found)


async def test_a_consumer_is_gone_when_nothing_takes_its_messages_and_not_while_one_that_pulls_works() -> None:
    """Found by trials: the alert fired for a working webhook or HTTP worker, which has no session."""
    rig = BrokerRig()
    poll = rig.poll("t", "hook", visibility_s=30)
    rig.publish("t", b"a", b"b")
    assert await firing(rig, "ToymqConsumerGone") == set(), "a PULL waits"
    assert rig.shown(*poll.take(1, 1 << 20)) == ["t 0-0 x1"]
    poll.close()
    assert rig.numbers("t")["consumers"]["hook"]["sessions"] == 0
    assert await firing(rig, "ToymqConsumerGone") == set(), "it works on what it pulled"
    rig.advance(31)
    assert await firing(rig, "ToymqConsumerGone") == {"hook"}, "nothing is attached, and its lease is over"
    rig.subscribe("t", "hook")
    assert await firing(rig, "ToymqConsumerGone") == set()


async def test_a_consumer_that_fails_at_everything_is_told_while_its_messages_wait_to_come_again() -> None:
    """Found by trials: messages that wait for their redelivery are no backlog, so no rule fired before the dead letters, an
    hour later."""
    rig = BrokerRig()
    rig.publish("t", b"a", b"b")
    subscription = rig.subscribe("t", "hook")
    for attempt in range(1, 8):
        assert rig.take(subscription) == [(0, attempt), (1, attempt)]
        assert await firing(rig, "ToymqConsumerFailing") == ({"hook"} if attempt > 1 else set()), "while it is tried again, too"
        rig.nack("t", 0, 1, "hook", delay_s=300.0)
        assert await firing(rig, "ToymqConsumerFailing") == {"hook"}
        rig.advance(301)
    rig.take(subscription)
    rig.ack("t", 0, 1, "hook")
    assert await firing(rig, "ToymqConsumerFailing") == set()


def node(state: str, group: str = "", view: dict[str, bool] | None = None) -> bytes:
    """Return a scrape of a node. ``view``: whether each group has a leader, as the leader of one knows."""
    numbers: dict[str, Any] = {"role": {(each, group): float(each == state) for each in ("FOLLOWING", "LEADING")}}
    if view is not None:
        picture = Picture("")
        leader = LeaderKey(Member("r", "n", "h:1", "h:2"), 1, 1)
        picture.groups = {name: Group(made=True, begun=True, leader=leader if has else None) for name, has in view.items()}
        numbers |= rows(picture, group, [], 0)
    return render_cluster(ClusterRows(numbers, {}))[0]


def without_leader(*scrapes: bytes) -> set[str]:
    """Return the groups for which ToymqNoLeader fires: ``aggregate by (group) (metric) == 0``, or another of that form."""
    families = [family for scrape in scrapes for family in text_string_to_metric_families(scrape.decode())]
    found = set()
    for term in RULES["ToymqNoLeader"].split(" or "):
        asked = re.fullmatch(r'(sum|max) by \(group\) \((\w+)(\{role="LEADING"\})?\) == 0', term)
        assert asked is not None, f"{term} has an operator that this test does not know"
        added_up, name, leading = asked.groups()
        values: dict[str, list[float]] = {}
        for sample in (sample for family in families for sample in family.samples if sample.name == name):
            if not leading or sample.labels["role"] == "LEADING":
                values.setdefault(sample.labels.get("group", ""), []).append(sample.value)
        found |= {group for group, some in values.items() if ADDED_UP[added_up](some) == 0}
    return found


def test_a_group_without_a_leader_fires_by_what_any_leader_says() -> None:
    """Found by a trial: the sum was over all groups, so one group with a leader hid another one without."""
    both = {"a": True, "b": True}
    assert without_leader(node("LEADING", "a", both), node("FOLLOWING", "a"), node("LEADING", "b", both)) == set()
    gone = {"a": True, "b": False}
    assert without_leader(node("LEADING", "a", gone)) == {"b"}, "no node of it is left to be asked"
    assert without_leader(node("LEADING", "a", gone), node("FOLLOWING", "b")) == {"b"}
    assert without_leader(node("FOLLOWING", "a"), node("FOLLOWING", "b")) == {"a", "b"}
    late = {"a": True, "b": False, "c": True}
    all_three = dict.fromkeys("abc", True)
    assert without_leader(node("LEADING", "a", late), node("LEADING", "b", all_three)) == set(), "a has not heard of it"
    assert without_leader(node("FOLLOWING"), node("LEADING")) == set()
    assert without_leader(node("FOLLOWING"), node("FOLLOWING")) == {""}, "a cluster without groups"
