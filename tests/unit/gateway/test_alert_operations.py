"""Alert rules over HTTP: defined, listed, tested, deleted, with rights and an audit trail."""

import random
from collections.abc import AsyncIterator
from hashlib import sha256

import pytest

from tests.support.http_receiver import receiving
from tests.support.http_rig import HttpRig, gateway, listening, refused
from tests.support.http_tokens import bearer, three_tokens
from tests.support.sim_disk import SimDisk
from tests.support.worker_processes import topic_of
from toymq_py.auth.tokens import parse_grants
from toymq_py.gateway import alert_watch
from toymq_py.placement import Placement

DIR = "/data/d"
RULE = {"when": "lag", "topic": "orders.*", "threshold": 100, "to": "alerts"}


@pytest.fixture
async def rig() -> AsyncIterator[HttpRig]:
    async with listening(DIR, fs=SimDisk(random.Random(1)), private_webhooks=True) as rig:
        yield rig


async def test_a_rule_is_defined_shown_and_deleted(rig: HttpRig) -> None:
    made = await rig.ask("PUT", "/v1/alerts/late", json=RULE | {"for": "5m"})
    assert made.status_code == 201
    expected = {
        "name": "late", "when": "lag", "topic": "orders.*", "threshold": 100, "clear": 80, "unit": "messages",
        "for_ms": 300_000, "repeat_ms": 14_400_000, "url": None, "secret": None, "timeout_ms": 10_000, "to": "alerts",
        "firing": 0, "troubles": [],
        "beyond": 0, "failure": None,
    }  # fmt: skip
    assert made.json() == expected
    assert (await rig.ask("GET", "/v1/alerts")).json() == {"part": None, "alerts": [expected]}
    assert (await rig.ask("PUT", "/v1/alerts/late", json=RULE)).status_code == 200
    assert (await rig.ask("GET", "/v1/alerts/late")).json()["for_ms"] == 60_000
    assert (await rig.ask("DELETE", "/v1/alerts/late")).status_code == 204
    for method, path in (("GET", "late"), ("DELETE", "late"), ("POST", "late:test")):
        problem = refused(await rig.ask(method, f"/v1/alerts/{path}"), 404, "NO_SUCH_ALERT")
        assert problem["detail"] == "no alert late: `toymqctl alerts` or GET /v1/alerts lists them"


async def test_what_is_wrong_is_said(rig: HttpRig) -> None:
    refused(await rig.ask("PUT", "/v1/alerts/late", json={"when": "lag"}), 422, "BAD_ARGUMENT")
    refused(await rig.ask("PUT", "/v1/alerts/late", content=b"{"), 400, "BAD_FRAMING")
    refused(await rig.ask("PUT", "/v1/alerts/.late", json=RULE), 422, "BAD_NAME")


@pytest.mark.parametrize("member", ["topic", "to"])
async def test_a_topic_of_another_worker_is_refused(rig: HttpRig, member: str) -> None:
    """Found: such a rule would never fire, or all its notices would fail."""
    rig.broker.placement = Placement(0, ("host:1", "host:2"))
    problem = refused(await rig.ask("PUT", "/v1/alerts/late", json=RULE | {member: topic_of(1, 2)}), 421, "MOVED")
    assert problem["detail"] == f"host:2 (worker 1) has the topic {topic_of(1, 2)}"
    made = await rig.ask("PUT", "/v1/alerts/late", json=RULE | {"topic": "orders.*", "to": topic_of(0, 2)})
    assert (made.status_code, made.json()["workers"]) == (201, 2), "topics of the other one are not watched"


async def test_a_rule_fires_by_itself_and_shows_what_is_in_trouble(rig: HttpRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_watch, "EVERY_MIN_S", 0.01)
    await rig.publish("orders", "a", "b")
    rule = {"when": "unattached", "topic": "orders", "for": "0", "to": "alerts"}
    assert (await rig.ask("PUT", "/v1/alerts/lost", json=rule)).status_code == 201
    await rig.until(lambda: "alerts" in rig.broker.topics and rig.broker.topic("alerts").log.committed_id)
    shown = (await rig.ask("GET", "/v1/alerts/lost")).json()
    (trouble,) = shown["troubles"]
    assert (shown["firing"], trouble["topic"], trouble["value"], trouble["firing"]) == (1, "orders", 2, True)
    metrics = (await rig.ask("GET", "/metrics")).text
    assert 'toymq_alerts_firing{alert="lost"} 1.0' in metrics
    assert 'toymq_alert_notices_total{outcome="sent"} 1.0' in metrics


async def test_a_test_says_whether_it_was_taken(rig: HttpRig) -> None:
    async with receiving() as receiver:
        url = f"http://localhost:{receiver.port}/"
        await rig.ask("PUT", "/v1/alerts/full", json={"when": "disk", "threshold": "1GiB", "url": url})
        assert (await rig.ask("POST", "/v1/alerts/full:test")).json() == {"name": "full", "failure": None}
        assert b"this is a test, nothing is wrong" in (await receiver.next())[1]
        receiver.answer = lambda number: 403
        assert (await rig.ask("POST", "/v1/alerts/full:test")).json()["failure"] == "localhost answered 403"
    await rig.ask("PUT", "/v1/alerts/late", json=RULE)
    assert (await rig.ask("POST", "/v1/alerts/late:test")).json()["failure"] is None
    assert rig.broker.topic("alerts").log.committed_id == 1


async def test_a_secret_is_kept_by_a_put_without_one_and_never_shown(rig: HttpRig) -> None:
    url = {"when": "disk", "threshold": "1GiB", "url": "http://127.0.0.1:9/"}
    answer = await rig.ask("PUT", "/v1/alerts/full", json=url | {"secret": "my secret"})
    assert "my secret" not in answer.text
    await rig.ask("PUT", "/v1/alerts/full", json=url | {"for": "2m"})
    assert (await rig.ask("GET", "/v1/alerts/full")).json()["secret"] == "(set)"
    await rig.ask("PUT", "/v1/alerts/full", json=url | {"secret": None})
    assert (await rig.ask("GET", "/v1/alerts/full")).json()["secret"] is None
    await rig.ask("PUT", "/v1/alerts/full", json=url | {"secret": "my secret"})
    await rig.ask("PUT", "/v1/alerts/full", json=url | {"url": None, "to": "alerts"})
    assert (await rig.ask("GET", "/v1/alerts/full")).json()["secret"] is None, "what is written to a topic is not signed"


async def test_rights_and_the_audit_trail(caplog: pytest.LogCaptureFixture) -> None:
    """Only ``admin`` may define rules; one that writes to a topic needs ``publish`` there, as its notices are messages of the
    token that defined it."""
    caplog.set_level("INFO", "toymq_py.audit")
    authority = three_tokens()
    async with gateway(DIR, fs=SimDisk(random.Random(1)), authority=authority) as rig:
        refused(await rig.ask("PUT", "/v1/alerts/late", json=RULE, headers=bearer("billing")), 403, "FORBIDDEN")
        refused(await rig.ask("GET", "/v1/alerts", headers=bearer("billing")), 403, "FORBIDDEN")
        said = refused(await rig.ask("PUT", "/v1/alerts/late", json=RULE, headers=bearer("operator")), 403, "FORBIDDEN")
        assert said["detail"] == "token operator may not publish alerts"
        digest = sha256(b"watcher-token").hexdigest()
        rights = f'[[token]]\nname = "watcher"\nadmin = true\npublish = ["alerts"]\nsha256 = "{digest}"\n'
        authority.replace(parse_grants(rights, "auth.toml"))
        assert (await rig.ask("PUT", "/v1/alerts/late", json=RULE, headers=bearer("watcher"))).status_code == 201
        assert (await rig.ask("DELETE", "/v1/alerts/late", headers=bearer("watcher"))).status_code == 204
    lines = [record.getMessage() for record in caplog.records if record.name == "toymq_py.audit"]
    assert [line.partition(" address")[0] for line in lines] == [
        "action=putAlert name=late token=billing", "action=listAlerts token=billing",
        "action=putAlert name=late token=operator",
        "action=putAlert name=late token=watcher", "action=deleteAlert name=late token=watcher",
    ]  # fmt: skip
