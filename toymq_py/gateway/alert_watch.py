"""Runs alert rules: keeps them in a file, evaluates them every few seconds, and sends their notices.

Contract: gateway.md; ADR 0149. ``alert_states.py`` decides, ``alert_readings.py`` measures, ``webhook_sender.py`` posts. A pass
walks over the topics in slices and yields to the event loop between them; a broker without rules makes none. Each rule that has
notices due has a task that sends them one after the other, no faster than ``NOTICES_PER_S`` after a burst.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import islice, product
from typing import Any

from toymq_py.broker import Broker
from toymq_py.broker_waits import made, settled, stored
from toymq_py.clock import Clock
from toymq_py.config.alerts import Alert
from toymq_py.errors import DamagedData, InternalError, RequestError, StorageFailed
from toymq_py.gateway.alert_readings import Subjects, measure
from toymq_py.gateway.alert_states import DISK, AlertStates, Notice, Reading
from toymq_py.gateway.headers import header_block
from toymq_py.gateway.waiters import Waiting
from toymq_py.gateway.webhook_sender import WebhookSender, backoff_s
from toymq_py.token_bucket import TokenBucket
from toymq_py.topic import Topic

logger = logging.getLogger("toymq_py.gateway")

EVERY_MIN_S = 1.0
EVERY_MAX_S = 60.0
COST_SHARE = 0.02
"""The part of a core that evaluations may take: the time to the next one is chosen so, within those limits. ``for`` and
``repeat`` are only as exact as that."""
MEASURES_PER_TURN = 64
"""Measurements, of a rule and a topic each, before other tasks get a turn; a millisecond."""
ATTEMPTS_MAX = 12
"""Most attempts to send one notice, over 23 minutes; a rule that fires on is repeated after ``repeat``."""
BURST = 20
NOTICES_PER_S = 0.5
"""Notices that a rule may send: those of more topics in trouble come later, if they are in trouble still."""
TROUBLE_S = 5.0
"""The wait after a pass that failed."""
SHOWN_MAX = 100
"""Most topics in trouble that are listed for a rule."""


class Rule:
    """One rule with its states. ``failure``: why the last notice was not delivered; None when it was."""

    def __init__(self, alert: Alert, clock: Clock) -> None:
        self.alert = alert
        self.states = AlertStates(alert)
        self.subjects = None if alert.topic is None else Subjects(alert.when, alert.topic)
        self.failure: str | None = None
        self.sending: asyncio.Task[None] | None = None
        self.allowance = TokenBucket(clock, BURST, NOTICES_PER_S)


class AlertWatch:
    """All rules. Evaluates and sends while ``run`` lasts. Belongs to the event loop."""

    def __init__(
        self, broker: Broker, sender: WebhookSender, clock: Clock, loop: asyncio.AbstractEventLoop, waiting: Waiting
    ) -> None:
        """Reads the definitions, so it blocks."""
        self.rules: dict[str, Rule] = {}
        self._broker = broker
        self._sender = sender
        self._clock = clock
        self._loop = loop
        self._waiting = waiting
        self._problem: StorageFailed | None = None
        self._changing = asyncio.Lock()
        self._defined = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        try:
            for name, alert in broker.directory.read_alerts().items():
                self._add(name, alert)
        except (OSError, DamagedData) as error:
            self._problem = StorageFailed(f"alerts.json cannot be read: {error}; no alert fires until `toymq repair`")
            logger.error("%s", self._problem)  # noqa: TRY400 (the file, not a bug)

    # -- definitions

    @property
    def defined(self) -> dict[str, Alert]:
        """The rules by name."""
        return {name: rule.alert for name, rule in self.rules.items()}

    def check(self) -> None:
        """Check that the definitions could be read. Raises: StorageFailed."""
        if self._problem is not None:
            raise self._problem

    async def put(self, name: str, alert: Alert, *, keep_secret: bool = False) -> bool:
        """Define a rule, durably. It begins anew, without the states of the one that it replaces. Returns: whether it is new.

        Args:
            keep_secret: keep the secret of the replaced rule. No answer shows secrets, so a client cannot send it back.

        Raises: Forbidden (a private address), BadArgument (too many rules), StorageFailed, DiskFull.
        """
        if (url := alert.check_secret().url) is not None:
            await self._sender.check(url)
        async with self._changing:
            new = name not in self.rules
            if keep_secret and not new and alert.url is not None:
                alert = replace(alert, secret=self.rules[name].alert.secret)  # as it is by now
            if new or self.rules[name].alert != alert:
                await self._store({**self.defined, name: alert})
                self._remove(name)
                self._add(name, alert)
            return new

    async def delete(self, name: str) -> bool:
        """Delete a rule, without notices that resolve its firing alerts. Returns: whether it existed.

        Raises: StorageFailed, DiskFull.
        """
        async with self._changing:
            if name not in self.rules:
                return False
            await self._store({other: alert for other, alert in self.defined.items() if other != name})
            self._remove(name)
            return True

    async def _store(self, defined: Mapping[str, Alert]) -> None:
        self.check()
        await stored(partial(self._broker.directory.store_alerts, defined))

    def _add(self, name: str, alert: Alert) -> None:
        self.rules[name] = Rule(alert, self._clock)
        self._broker.metrics.alerts_firing[name] = 0
        self._defined.set()

    def _remove(self, name: str) -> None:
        rule = self.rules.pop(name, None)
        if rule is not None:
            self._broker.metrics.alerts_firing.pop(name, None)
            if rule.sending is not None:
                rule.sending.cancel()

    def describe(self, name: str) -> dict[str, Any]:
        """The JSON object of a rule, with the topics that are in trouble."""
        rule = self.rules[name]
        troubles = [
            {"topic": subject or None, "consumer": trouble.reading.consumer, "value": trouble.reading.value,
             "since_ms": trouble.since_ms, "firing": trouble.firing}
            for subject, trouble in islice(rule.states.troubles.items(), SHOWN_MAX)
        ]  # fmt: skip
        return {"name": name, **rule.alert.public(), "firing": rule.states.firing, "troubles": troubles,
                "beyond": rule.states.beyond, "failure": rule.failure}  # fmt: skip

    # -- evaluating

    async def run(self) -> None:
        """Evaluate the rules until cancelled or the broker shuts down."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                while not self._waiting.stopped:
                    if not self.rules:
                        self._defined.clear()
                        await self._defined.wait()
                    pause_s = EVERY_MIN_S
                    try:
                        pause_s = max(pause_s, min(await self.evaluate() / COST_SHARE, EVERY_MAX_S))
                    except Exception:
                        logger.exception("bug in the alerts")
                        pause_s = TROUBLE_S
                    await self._waiting.sleep(pause_s)
            finally:
                self._tasks = None
                for rule in self.rules.values():
                    if rule.sending is not None:
                        rule.sending.cancel()

    async def evaluate(self) -> float:
        """Evaluate the rules once; then start sending due notices. Returns: how long it held the event loop, in seconds."""
        began = self._clock.monotonic()
        rules = dict(self.rules)
        written = {rule.alert.to for rule in rules.values()}
        for name, rule in rules.items():
            if rule.subjects is None:
                self._look(name, rule, DISK, Reading(self._broker.stats()["disk_free_bytes"]))
            elif rule.subjects.exact is not None:
                self._measure(name, rule, rule.subjects.exact)
        patterns = [(name, rule) for name, rule in rules.items() if rule.subjects is not None and rule.subjects.exact is None]
        # what the alerts write is no trouble of its own, unless a rule names it
        topics = [topic for topic in self._broker.topics if topic not in written] if patterns else []
        left = product(topics, patterns)
        while part := list(islice(left, MEASURES_PER_TURN)):
            for topic, (name, rule) in part:
                self._measure(name, rule, topic)
            paused = self._clock.monotonic()
            await self._waiting.pause()
            began += self._clock.monotonic() - paused
        for name, rule in rules.items():
            for notice in rule.states.end_pass(self._now_ms()):
                self._say(name, rule, notice)
            if self.rules.get(name) is rule:
                self._broker.metrics.alerts_firing[name] = rule.states.firing
                self._begin_sending(name, rule)
        return self._clock.monotonic() - began

    def _measure(self, name: str, rule: Rule, topic_name: str) -> None:
        topic: Topic | None = self._broker.topics.get(topic_name)
        if topic is None or topic.deleted or rule.subjects is None or (subject := rule.subjects.of(topic_name)) is None:
            return
        try:
            reading = measure(rule.alert.when, topic)
        except (OSError, RequestError):  # damage that is being examined, or a disk that does not answer
            rule.states.keep(subject)
        else:
            self._look(name, rule, subject, reading)

    def _look(self, name: str, rule: Rule, subject: str, reading: Reading) -> None:
        notice = rule.states.look(subject, reading, self._clock.monotonic(), self._now_ms())
        if notice is not None:
            self._say(name, rule, notice)

    def _now_ms(self) -> int:
        return self._clock.wall_ns() // 1_000_000

    def _say(self, name: str, rule: Rule, notice: Notice) -> None:
        level = logging.WARNING if notice.state == "firing" else logging.INFO
        logger.log(level, "%s", notice.to_json(name, rule.alert)["text"])

    # -- sending

    def _begin_sending(self, name: str, rule: Rule) -> None:
        if self._tasks is not None and rule.sending is None and rule.states.due:
            rule.sending = self._tasks.create_task(self._send_all(name, rule))

    async def _send_all(self, name: str, rule: Rule) -> None:
        """Send the due notices, one after the other."""
        try:
            while not self._waiting.stopped and rule.states.due:
                await self._waiting.rest(rule.allowance.wait_s())
                rule.allowance.take()
                if (notice := rule.states.next_due()) is not None:  # else it was over before its turn
                    await self._send_with_retries(name, rule, notice)
        except Exception:
            logger.exception("bug in the notices of alert %s", name)
        finally:
            rule.sending = None

    async def _send_with_retries(self, name: str, rule: Rule, notice: Notice) -> None:
        """Try to send a notice until it is delivered, a newer one replaces it, or after ``ATTEMPTS_MAX`` attempts."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            failure = await self.attempt(name, rule.alert, notice)
            if failure is not None and rule.failure is None:  # once, until one is taken
                logger.warning("alert %s: its notice was not taken: %s", name, failure)
            rule.failure = failure
            if failure is None:
                break
            await self._waiting.rest(backoff_s(attempt))
            if self._waiting.stopped or not rule.states.is_due(notice):
                return
        self._broker.metrics.alert_notices["sent" if rule.failure is None else "failed"] += 1
        rule.states.settle(notice)

    async def test(self, name: str) -> str | None:
        """Send a notice that is marked as a test, once. Returns: why it was not delivered; None when it was."""
        now_ms = self._now_ms()
        return await self.attempt(name, self.rules[name].alert, Notice("test", DISK, None, now_ms, now_ms, 1))

    async def attempt(self, name: str, alert: Alert, notice: Notice) -> str | None:
        """Post a notice, or write it to its topic, once. Returns: why it was not delivered; None when it was."""
        body = json.dumps(notice.to_json(name, alert)).encode()
        try:
            if alert.url is None:
                return await self._write(str(alert.to), body)
            headers = {"content-type": "application/json"}
            return await self._sender.send(
                alert.url, alert.secret, alert.timeout_ms, notice.message_id(name), headers, body
            )  # fmt: skip
        except Exception:
            logger.exception("bug in a notice of alert %s", name)
            return str(InternalError())

    async def _write(self, to: str, body: bytes) -> str | None:
        try:
            topic = await made(partial(self._broker.topic_to_publish, to))
        except RequestError as error:
            return str(error)
        (outcome,) = topic.publish([b""], [body], [header_block([("content-type", "application/json")])])
        refusal = outcome.error or await settled(outcome.commit)
        return None if refusal is None else str(refusal)
