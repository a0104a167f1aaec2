"""Alert rules on a real broker: they fire, their notices are sent, stored and bounded."""

import asyncio
import base64
import hashlib
import hmac
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tests.support.fake_clock import FakeClock
from tests.support.http_receiver import Receiver, receiving
from tests.support.http_rig import HttpRig, gateway
from tests.support.sim_disk import SimDisk
from toymq_py.config.alerts import Alert
from toymq_py.consumer_options import LATEST
from toymq_py.errors import Forbidden, StorageFailed
from toymq_py.gateway import alert_watch, webhook_sender
from toymq_py.gateway.alert_watch import AlertWatch
from toymq_py.storage import alerts_file

DIR = "/data/d"
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()


class Watched:
    """A broker and its alerts; time stands still until ``pass_at`` moves it."""

    def __init__(self, rig: HttpRig) -> None:
        assert rig.gateway is not None
        self.rig = rig
        self.broker = rig.broker
        self.sender = rig.gateway.sender
        self.sender.private = True
        self.clock = FakeClock()
        self.watch = AlertWatch(rig.broker, self.sender, self.clock, asyncio.get_running_loop(), rig.gateway.waiting)

    async def after(self, seconds: float) -> None:
        """Let time pass, then evaluate."""
        self.clock.advance(seconds)
        await self.watch.evaluate()

    async def alerts_of(self, topic: str, count: int) -> list[dict[str, Any]]:
        """Return the notices in a topic, once there are so many."""
        await self.rig.until(lambda: topic in self.broker.topics and self.broker.topic(topic).log.committed_id >= count)
        log = (await self.rig.ask("GET", f"/v1/topics/{topic}/log?max=100")).json()["messages"]
        return [json.loads(message["payload"]) for message in log]


@asynccontextmanager
async def watched(fs: SimDisk | None = None, **options: Any) -> AsyncIterator[Watched]:
    """Yield a broker whose alert task runs, and evaluates only when it is told to."""
    async with gateway(DIR, fs=fs or SimDisk(random.Random(1)), **options) as rig, asyncio.TaskGroup() as tasks:
        found = Watched(rig)
        running = tasks.create_task(found.watch.run())
        await asyncio.sleep(0)
        try:
            yield found
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


@pytest.fixture(autouse=True)
def only_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_watch, "EVERY_MIN_S", 3600.0)


def to_topic(**members: object) -> Alert:
    return Alert.from_json({"when": "unattached", "topic": ">", "threshold": 1, "for": "1m", "to": "alerts", **members})


def to_url(receiver: Receiver, **members: object) -> Alert:
    return to_topic(**{"to": None, "url": f"http://localhost:{receiver.port}/hook", **members})


async def test_a_rule_writes_to_a_topic_when_it_fires_and_when_it_is_resolved() -> None:
    async with watched() as here:
        assert await here.watch.put("lost", to_topic())
        await here.rig.publish("orders", "a", "b")
        await here.after(0)
        await here.after(59)
        assert here.watch.rules["lost"].states.firing == 0
        await here.after(1)
        (fired,) = await here.alerts_of("alerts", 1)
        assert (fired["alert"], fired["state"], fired["topic"], fired["value"]) == ("lost", "firing", "orders", 2)
        assert fired["at_ms"] - fired["since_ms"] == 60_000
        assert here.broker.metrics.alerts_firing == {"lost": 1}
        here.broker.delete("orders", lambda count, error: None)
        await here.after(10)
        resolved = (await here.alerts_of("alerts", 2))[1]
        assert (resolved["state"], resolved["value"]) == ("resolved", None)
        assert here.broker.metrics.alerts_firing == {"lost": 0}
        await here.rig.until(lambda: here.broker.metrics.alert_notices == {"sent": 2, "failed": 0})


async def test_what_alerts_write_is_no_trouble_of_its_own() -> None:
    async with watched() as here:
        await here.watch.put("lost", to_topic(**{"for": "0"}))
        await here.rig.publish("orders", "a")
        await here.after(0)
        await here.alerts_of("alerts", 1)
        await here.after(10)
        assert list(here.watch.rules["lost"].states.troubles) == ["orders"], "`alerts` has a message and no consumer"
        await here.watch.put("named", to_topic(topic="alerts", to="other", **{"for": "0"}))
        await here.after(10)
        assert list(here.watch.rules["named"].states.troubles) == ["alerts"], "a rule that names it measures it"


async def test_a_notice_is_posted_signed() -> None:
    async with watched() as here, receiving() as receiver:
        await here.watch.put("lost", to_url(receiver, secret=SECRET, **{"for": "0"}))
        await here.rig.publish("orders", "a")
        await here.after(0)
        headers, body = await receiver.next()
        since_ms = here.clock.wall_ns() // 1_000_000
        assert headers["webhook-id"] == f"alert:lost:orders:{since_ms}:firing:1"
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        expected = base64.b64encode(hmac.new(b"0123456789abcdef", signed, hashlib.sha256).digest()).decode()
        assert (headers["webhook-signature"], headers["content-type"]) == (f"v1,{expected}", "application/json")
        text = json.loads(body)["text"]
        assert text.startswith("toymq alert lost firing: orders has 1 message to deliver and nothing attached (threshold 1")


async def test_a_notice_that_is_not_taken_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_sender, "RETRY_MIN_S", 0.001)
    async with watched() as here, receiving() as receiver:
        receiver.answer = lambda number: (500, 302, 200)[number]
        await here.watch.put("lost", to_url(receiver, **{"for": "0"}))
        await here.rig.publish("orders", "a")
        await here.after(0)
        pushes = [await receiver.next() for _ in range(3)]
        assert len({headers["webhook-id"] for headers, _ in pushes}) == 1, "the receiver can tell them from a new one"
        await here.rig.until(lambda: here.watch.rules["lost"].sending is None)
        assert (here.watch.describe("lost")["failure"], here.broker.metrics.alert_notices["sent"]) == (None, 1)


async def test_a_notice_is_given_up_after_its_attempts_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(webhook_sender, "RETRY_MIN_S", 0.0)
    async with watched() as here, receiving() as receiver:
        receiver.answer = lambda number: 503
        await here.watch.put("lost", to_url(receiver, **{"for": "0"}))
        await here.rig.publish("orders", "a")
        await here.after(0)
        await here.rig.until(lambda: here.watch.rules["lost"].sending is None)
        assert receiver.pushes.qsize() == alert_watch.ATTEMPTS_MAX
        assert here.watch.describe("lost")["failure"] == "localhost answered 503"
        assert here.broker.metrics.alert_notices == {"sent": 0, "failed": 1}
        said = [record.getMessage() for record in caplog.records if "not taken" in record.getMessage()]
        assert said == ["alert lost: its notice was not taken: localhost answered 503"]
        receiver.answer = lambda number: 200
        await here.after(4 * 3600)
        await here.rig.until(lambda: here.broker.metrics.alert_notices["sent"] == 1)


async def test_logins_that_end_use_up_no_attempts_of_a_notice() -> None:
    """Found: each logout woke the pending notices, and twelve logouts were twelve attempts in a moment."""
    async with watched() as here, receiving() as receiver:
        receiver.answer = lambda number: 503
        await here.watch.put("lost", to_url(receiver, **{"for": "0"}))
        await here.rig.publish("orders", "a")
        await here.after(0)
        await receiver.next()
        await here.rig.until(lambda: here.watch.describe("lost")["failure"] is not None)
        assert here.rig.gateway is not None
        for _ in range(alert_watch.ATTEMPTS_MAX):
            here.rig.gateway.waiting.wake()
            for _ in range(5):
                await asyncio.sleep(0)
        assert receiver.pushes.empty()
        assert here.watch.rules["lost"].states.due == 1


async def test_a_storm_is_sent_slowly_and_what_is_over_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alert_watch, "NOTICES_PER_S", 1e-6)  # however slow the machine is
    async with watched() as here, receiving() as receiver:
        await here.watch.put("lost", to_url(receiver, **{"for": "0"}))
        for number in range(alert_watch.BURST + 20):
            here.broker.topic_or_new(f"t{number}").publish([b""], [b"x"])
        await here.rig.publish("last", "x")
        await here.rig.until(lambda: all(topic.next_id for topic in here.broker.topics.values()))
        await here.after(0)
        for _ in range(alert_watch.BURST):
            await receiver.next()
        rule = here.watch.rules["lost"]
        assert rule.states.firing == alert_watch.BURST + 21
        await here.rig.until(lambda: rule.allowance.wait_s() > 0)
        for name in [name for name in here.broker.topics if name.startswith("t")]:
            here.broker.topic(name).seek("c", LATEST)
        await here.after(10)
        assert rule.states.firing == 1
        assert rule.states.due <= alert_watch.BURST + 1, "the ends of those that were told of, and one beginning"


async def test_rules_survive_a_power_cut_and_a_restart_begins_anew() -> None:
    disk = SimDisk(random.Random(1))
    async with watched(disk) as here:
        await here.watch.put("lost", to_topic(**{"for": "0"}))
        await here.rig.publish("orders", "a")
        await here.after(0)
        await here.alerts_of("alerts", 1)
        disk = disk.crash()
    async with watched(disk) as here:
        assert here.watch.defined == {"lost": to_topic(**{"for": "0"})}
        await here.after(0)
        assert [notice["state"] for notice in await here.alerts_of("alerts", 2)] == ["firing", "firing"], "it is told again"


async def test_a_damaged_file_is_said_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk(random.Random(1))
    async with watched(disk):
        pass
    file = disk.open(f"{DIR}/{alerts_file.FILE_NAME}", create=True)
    file.pwrite(b"damaged", 0)
    file.close()
    async with watched(disk.kill()) as here:
        with pytest.raises(StorageFailed, match=r"alerts.json cannot be read: .*; no alert fires until `toymq repair`"):
            here.watch.check()
        with pytest.raises(StorageFailed):
            await here.watch.put("lost", to_topic())
        assert here.watch.defined == {}
    assert "alerts.json cannot be read" in caplog.text


async def test_a_private_address_is_refused_unless_allowed() -> None:
    async with watched() as here:
        here.sender.private = False
        for host in ("localhost", "169.254.169.254", "[::1]"):
            with pytest.raises(Forbidden, match="is of this machine or its network"):
                await here.watch.put("lost", to_topic(to=None, url=f"http://{host}/"))
        assert here.watch.defined == {}


async def test_an_address_that_became_private_is_not_called() -> None:
    """The address is checked for every notice, not only when the rule is defined."""
    async with watched() as here, receiving() as receiver:
        await here.watch.put("lost", to_url(receiver, **{"for": "0"}))
        here.sender.private = False
        await here.rig.publish("orders", "a")
        await here.after(0)
        await here.rig.until(lambda: here.watch.rules["lost"].failure)
        assert "of this machine or its network" in here.watch.describe("lost")["failure"]
        assert receiver.pushes.empty()


async def test_a_rule_that_is_deleted_or_replaced_sends_nothing_more() -> None:
    async with watched() as here, receiving() as receiver:
        receiver.answer = lambda number: 500
        await here.watch.put("lost", to_url(receiver, **{"for": "0"}))
        await here.rig.publish("orders", "a")
        await here.after(0)
        await receiver.next()
        sending = here.watch.rules["lost"].sending
        assert sending is not None
        assert await here.watch.put("lost", to_url(receiver, **{"for": "0"})) is False
        assert here.watch.rules["lost"].sending is sending, "the same once more changes nothing"
        assert await here.watch.put("lost", to_topic(**{"for": "1h"})) is False
        await here.rig.until(sending.done)
        assert here.watch.rules["lost"].states.troubles == {}, "it begins anew"
        assert await here.watch.delete("lost")
        assert not await here.watch.delete("lost")
        await here.after(10)
        assert (here.broker.metrics.alerts_firing, here.watch.defined) == ({}, {})


@pytest.mark.provokes_bugs
async def test_a_bug_in_one_topic_ends_neither_the_watch_nor_the_broker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched() as here:
        await here.watch.put("lost", to_topic(**{"for": "0"}))
        await here.rig.publish("orders", "a")
        measure = alert_watch.measure

        def failing(*_: object) -> Any:
            monkeypatch.setattr(alert_watch, "measure", measure)
            raise TypeError("a bug")

        monkeypatch.setattr(alert_watch, "measure", failing)
        monkeypatch.setattr(alert_watch, "TROUBLE_S", 0.0)
        here.rig.gateway.waiting.wake()  # type: ignore[union-attr]
        await here.alerts_of("alerts", 1)
        assert "bug in the alerts" in caplog.text


@pytest.mark.provokes_bugs
async def test_a_bug_while_one_rule_sends_ends_neither_the_watch_nor_another_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched() as here:
        for name in ("broken", "whole"):
            await here.watch.put(name, to_topic(to=f"to-{name}", **{"for": "0"}))

        def failing(*_: object) -> None:
            raise TypeError("a bug")

        monkeypatch.setattr(here.watch.rules["broken"].states, "settle", failing)
        await here.rig.publish("orders", "a")
        await here.after(0)
        await here.alerts_of("to-whole", 1)
        await here.rig.until(lambda: here.watch.rules["broken"].sending is None)
        here.broker.delete("orders", lambda count, error: None)
        await here.after(10)
        assert [notice["state"] for notice in await here.alerts_of("to-whole", 2)] == ["firing", "resolved"]


async def test_a_topic_that_cannot_be_read_now_keeps_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched() as here:
        await here.watch.put("lost", to_topic(**{"for": "1m"}))
        await here.rig.publish("orders", "a")
        await here.after(0)

        def examined(*_: object) -> Any:
            raise OSError("the disk does not answer")

        with monkeypatch.context() as patch:
            patch.setattr(alert_watch, "measure", examined)
            await here.after(30)
        await here.after(30)
        assert (await here.alerts_of("alerts", 1))[0]["state"] == "firing"


async def test_a_low_disk_fires_though_nothing_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched() as here, receiving() as receiver:
        await here.watch.put("full", to_url(receiver, when="disk", topic=None, threshold="1TiB", **{"for": "0"}))
        stats = here.broker.stats
        for free, state in ((1 << 30, "firing"), (2 << 40, "resolved")):
            monkeypatch.setattr(here.broker, "stats", lambda free=free: {**stats(), "disk_free_bytes": free})
            await here.after(10)
            body = json.loads((await receiver.next())[1])
            assert (body["state"], body["value"], body["topic"]) == (state, free, None)


async def test_a_topic_that_refuses_is_said() -> None:
    async with watched(max_topics=1) as here:
        await here.watch.put("lost", to_topic(**{"for": "0"}))
        await here.rig.publish("orders", "a")
        await here.after(0)
        await here.rig.until(lambda: here.watch.rules["lost"].failure)
        assert "topics" in here.watch.describe("lost")["failure"]


async def test_a_pass_over_many_topics_gives_the_loop_back() -> None:
    """A pass yields to the loop after every 64 measurements, however many rules there are; without a pattern it does not."""
    async with watched() as here:
        for number in range(1000):
            here.broker.topic_or_new(f"t{number}")
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        async with asyncio.TaskGroup() as tasks:
            counting = tasks.create_task(count())
            await here.watch.put("one", to_topic(topic="t1"))
            turns = 0
            await here.after(0)
            assert turns <= 1, "a name is looked up"
            for rules in (1, 2):
                await here.watch.put(f"all-{rules}", to_topic())
                turns = 0
                await here.after(0)
                assert turns >= rules * 1000 // alert_watch.MEASURES_PER_TURN
            counting.cancel()


async def test_what_the_passes_cost_decides_how_often_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over 10,000 topics takes some tenths of a second, so passes are spaced to take 2 % of a core."""
    slept: list[float] = []
    monkeypatch.setattr(alert_watch, "EVERY_MIN_S", 1.0)
    async with watched() as here:
        done = asyncio.Event()

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) == 3:
                done.set()
                await asyncio.Event().wait()

        monkeypatch.setattr(here.rig.gateway.waiting, "sleep", sleep)  # type: ignore[union-attr]
        costs = iter((0.001, 0.5, 5.0))

        async def evaluate() -> float:
            return next(costs)

        monkeypatch.setattr(here.watch, "evaluate", evaluate)
        await here.watch.put("lost", to_topic())
        await done.wait()
    assert slept == [1.0, 25.0, 60.0]


async def test_the_cost_of_a_pass_is_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched() as here:
        await here.watch.put("all", to_topic())
        for number in range(100):
            here.broker.topic_or_new(f"t{number}")
        measure = alert_watch.measure

        def slow(*arguments: Any) -> Any:
            here.clock.advance(0.001)
            return measure(*arguments)

        async def pause() -> None:
            here.clock.advance(10.0)

        monkeypatch.setattr(alert_watch, "measure", slow)
        monkeypatch.setattr(here.rig.gateway.waiting, "pause", pause)  # type: ignore[union-attr]
        assert await here.watch.evaluate() == pytest.approx(0.1), "without the turns of others"
