"""Apply the commands of a session to the broker and queue their replies. Contract: protocol.md, "Commands".

Never waits. Knows no transport.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from toymq_py import partition_operations
from toymq_py.auth import audit
from toymq_py.broker import Broker
from toymq_py.clock import Clock
from toymq_py.disk_errors import BeingExamined, storage_error
from toymq_py.errors import BadArgument, BadVersion, InternalError, Moved, NameBusy, NoSuchTopic, RequestError, ShuttingDown
from toymq_py.names import DEAD_LETTERS
from toymq_py.partitions import Partitioned
from toymq_py.protocol import (
    Ack,
    Command,
    HelloReply,
    Nack,
    Publish,
    SettlementRun,
    Touch,
    commands,
    encode_hello,
    encode_offsets,
    encode_ok,
    encode_pong,
)
from toymq_py.protocol.frames import PROTOCOL_VERSION
from toymq_py.records import IdRange
from toymq_py.routes import Router
from toymq_py.session.changes import Changes
from toymq_py.session.cluster_reply import cluster_reply
from toymq_py.session.deliveries import Deliveries
from toymq_py.session.fetches import Fetches
from toymq_py.session.gate import ADMINISTRATIVE, TAKEN_AT_SHUTDOWN, Gate
from toymq_py.session.listing import Listed, json_reply, listed_behind
from toymq_py.session.passing import Passing
from toymq_py.session.publish import answer, grouped, publish, publish_part
from toymq_py.session.pull import Pulls
from toymq_py.session.reader import Reader
from toymq_py.session.refused_sequences import RefusedSequences
from toymq_py.session.replies import PendingReply, Replies
from toymq_py.session.seek import seeking
from toymq_py.session.subscribe import seconds, subscribe
from toymq_py.session.trail import Trail, verb
from toymq_py.topic import Channel, Published, Refused
from toymq_py.trace_context import log_fields
from toymq_py.version import __version__

logger = logging.getLogger("toymq_py.session")

NO_OUTCOME = Refused(1, InternalError())
"""Stands for the outcome of a row until that is known."""


class Handler:
    """Carries out the commands of one session."""

    __slots__ = ("_broker", "_changes", "_deliveries", "_fetches", "_greeted", "_may_wait", "_metrics", "_number",
                 "_pulls", "_replies", "_router", "_run", "_trail", "client_name", "ended", "gate", "max_held_bytes",
                 "passing", "refused")  # fmt: skip

    def __init__(
        self, number: int, broker: Broker, replies: Replies, deliveries: Deliveries, loop: asyncio.AbstractEventLoop,
        address: str | None = None,
    ) -> None:  # fmt: skip
        """``number`` of the session for the log, ``address`` of the client for the audit trail."""
        self.client_name: str | None = None
        self.ended = False
        """Whether QUIT or a fatal error has come: no more commands are applied."""
        self.passing: Passing | None = None
        """Passes commands on to other workers; None in their connections, and without workers."""
        self._number = number
        self._broker, self._metrics = broker, broker.metrics
        self._replies, self._deliveries = replies, deliveries
        self._greeted = False
        self._fetches = Fetches(replies, deliveries, loop)
        self.refused = RefusedSequences(broker.placement.again)
        self._router: Router | None = None
        self._run: Iterator[Command] = iter(())
        self._may_wait = True
        self.gate = Gate()
        self._trail = Trail(broker, replies, address)
        self._changes = Changes(replies, self.gate, self._trail)
        self._pulls = Pulls(broker, replies, deliveries, loop, self.gate)
        self.max_held_bytes = broker.options.max_inflight_bytes
        """Most bytes that the replies may hold while commands are applied."""

    @property
    def has_room(self) -> bool:
        """Whether the next command may be applied."""
        return not self.gate.closed and self._replies.held_bytes <= self.max_held_bytes

    def step(self, reader: Reader, clock: Clock, slice_end: float) -> bool:
        """Apply commands in order while there is room for replies, until ``slice_end``.

        Returns: whether there is more to apply, and room.
        """
        replies, gate, monotonic = self._replies, self.gate, clock.monotonic
        while not gate.closed:
            for command in self._run:
                self.apply(command)
                if self.ended:
                    self._run = iter(())
                    return False
                if gate.closed:
                    return False
                if monotonic() > slice_end:
                    return True
            if replies.held_bytes > self.max_held_bytes:
                return False
            if not (run := reader.next_run()):
                return False
            self._run = iter(run)
        return False

    def end_waits(self) -> bool:
        """Answer waiting FETCHes and PULLs. Returns: whether there were any."""
        return self._fetches.end_waits() | self._pulls.end_waits() | (self.passing is not None and self.passing.end_waits())

    def wait_no_more(self) -> None:
        """Answer everything that waits, and later commands without a wait: the stream has ended. Idempotent."""
        if self._may_wait:
            self._may_wait = False
            self.end_waits()

    def close(self) -> None:
        """End all waits: the connection is gone."""
        self.end_waits()
        self._pulls.close()
        if self.passing is not None:
            self.passing.close()

    def apply(self, command: Command) -> None:
        """Apply one command. It gets its exact number of replies, even after a failure."""
        try:
            self._apply(command)
        except NameBusy as busy:
            self._apply_when_free(command, busy)
        except RequestError as error:
            self._refuse(command, error)
        except OSError as error:
            if not isinstance(error, BeingExamined):  # which passes, and is said to the client alone
                logger.error("session %d: %s failed: %s", self._number, verb(command), error, extra=_trace_fields(command))  # noqa: TRY400
            refusal = storage_error(error)
            if isinstance(command, ADMINISTRATIVE):
                self._trail.record(command, refusal.code)
            self._error(refusal)
        except Exception:
            logger.exception("session %d: bug in %s", self._number, verb(command), extra=_trace_fields(command))
            self._refuse(command, InternalError())
        finally:
            self._greeted = True
            if self.refused.ends_session:
                self.ended = True

    def _apply_when_free(self, command: Command, busy: NameBusy) -> None:
        """Apply a command that would make a topic, and those behind it, once the old topic of that name is deleted."""
        self._run = chain((command,), self._run)
        self.gate.wait(busy.when_done, self._replies.wake)

    def _refuse(self, command: Command, error: RequestError) -> None:
        """Reply with ``ERR``: once for each command of a run, but only once if the error is fatal."""
        if error.code in audit.REFUSED or isinstance(command, ADMINISTRATIVE):
            self._trail.record(command, error.code, error.token)
        error = error if self.passing is None else self.passing.refusal(command, error)
        if isinstance(command, Publish) and command.seqs is not None and self._remembers(command.topic):
            self.refused.refuse(command.topic, command.keys, command.seqs, moved=isinstance(error, Moved))
        count = 1
        if not error.fatal and isinstance(command, Publish | SettlementRun):
            count = len(command.keys) if isinstance(command, Publish) else len(command.ids)
        for _ in range(count):
            self._error(error)

    def _error(self, error: RequestError) -> None:
        self._replies.add_error(error)
        self.ended = self.ended or error.fatal

    def _apply(self, command: Command) -> None:
        if self._broker.shutting_down and not isinstance(command, TAKEN_AT_SHUTDOWN):
            raise ShuttingDown("the broker is shutting down; send it again to the next one")
        if isinstance(command, Publish) and self._broker.partitioned.by_name:
            whole = self._broker.partitioned.find(command.topic)
            if whole is not None and not command.topic.endswith(DEAD_LETTERS):  # is_dead_letters: a call more a publish
                self._publish_routed(command, whole)
                return
        if not self._may_wait and isinstance(command, commands.Fetch | commands.Pull):
            command = replace(command, wait_ms=0)
        if self.passing is not None and self.passing.take(command, self.refused):
            self._trail.passed_on(command)
            return
        match command:
            case Publish():
                self._publish(command)
            case Ack():
                self._ack(command)
            case SettlementRun():
                self._settle_each(command)
            case commands.Rejected():
                self._reject(command)
            case commands.Ping():
                self._replies.add(encode_pong())
            case commands.Subscribe():
                subscribe(command, self._broker, self._replies, self._deliveries, self._trail.made)
            case commands.Unsubscribe():
                self._unsubscribe(command)
            case commands.Held():
                self._replies.add(self._deliveries.held(command, self._broker.partitioned.other_name(command.topic)))
            case Nack() | Touch():
                self._settle(command)
            case commands.Pause():
                self._deliveries.pause(True)
                self._ok(0)
            case commands.Resume():
                self._deliveries.pause(False)
                self._ok(0)
            case commands.Fetch():
                self._fetches.fetch(self._broker.topic(command.topic), command)
            case commands.Offsets():
                self._offsets(command)
            case commands.Create():
                settings = command.settings
                self._changes.stored(
                    lambda done: partition_operations.create(self._broker, command.topic, settings, done), audited=command
                )
            case commands.Config():
                self._config(command)
            case commands.Delete():
                self._delete(command)
            case commands.Purge():
                self._changes.counted(lambda done: partition_operations.purge(self._broker, command.topic, done), command)
            case commands.Seek():
                begin, answer = seeking(self._broker, command)
                self._changes.stored(begin, answer=answer, audited=command)
            case commands.Forget():
                topic, consumer = command.topic, command.consumer
                self._changes.stored(
                    lambda done: partition_operations.forget(self._broker, topic, consumer, done), audited=command
                )
            case commands.Topics():
                self._replies.listed(lambda: (b"[", self._described(command.pattern), b"]"))
            case commands.Describe():
                self._describe(command.topic)
            case commands.Stats():
                self._replies.listed(self._stats)
            case commands.Cluster():
                self._replies.add(cluster_reply(self._broker, self._sees, moved=command.moved))
            case commands.Hello():
                self._hello(command)
            case commands.Quit():
                self._ok(0)
                self.ended = True
            case commands.Pull():
                self._pull(command)
            case commands.Redrive():
                ids, max_count = command.ids, command.max_count
                self._changes.counted(
                    lambda done: partition_operations.redrive(self._broker, command.topic, ids, max_count, done), command
                )

    def _reject(self, command: commands.Rejected) -> None:
        if command.publish is not None and self._remembers(command.publish[0]):
            name, producer, sequence = command.publish
            whole = self._broker.partitioned.find(name)
            if whole is not None:
                name = whole.names[Router().numbers(whole, [producer], sequences=[sequence])[0]]
            self.refused.refuse(name, [producer], [sequence])
        self._error(command.error)

    def _remembers(self, topic: str) -> bool:
        """Whether the refused sequences of a topic are remembered: a later publish to it may be stored."""
        return True

    def _ok(self, value: int) -> None:
        self._replies.add(encode_ok(value))

    def _hello(self, command: commands.Hello) -> None:
        if self._greeted:
            raise BadArgument("HELLO must be the first command of a connection")
        if command.version != PROTOCOL_VERSION:
            raise BadVersion(f"{PROTOCOL_VERSION} is the highest version that this broker speaks, not {command.version}")
        self.client_name = command.name
        options, divided = self._broker.options, self._broker.placement.is_divided
        reply = HelloReply(PROTOCOL_VERSION, f"toymq/{__version__}", options.max_payload_bytes, True, True, True, divided)
        self._replies.add(encode_hello(reply))

    # -- publishing and consuming

    def _publish(self, command: Publish) -> None:
        if publish(command, self._broker, self._replies, self.refused, self._trail.made):
            self.ended = True

    def _publish_routed(self, command: Publish, whole: Partitioned) -> None:
        """Publish to partitions, a run to each, here or at their workers; the replies are in the order of the rows."""
        if self._router is None:
            self._router = Router(self._number - 1)
        answers: list[Published | PendingReply] = [NO_OUTCOME] * len(command.keys)
        for part, rows in grouped(command, whole, self._router):
            found: Sequence[Published | PendingReply] | None = None
            if self.passing is not None:
                found = self.passing.take_part(part, self.refused)
            if found is None:
                found = publish_part(part, self._broker, self.refused)
            for row, one in zip(rows, found, strict=True):
                answers[row] = one
        self.ended = answer(answers, self._broker, self._replies) or self.ended

    def _pull(self, command: commands.Pull) -> None:
        known = command.topic in self._broker.topics
        self._pulls.pull(command)
        if not known and command.topic in self._broker.topics:  # else it is a pattern
            self._trail.made(command.topic)

    def _unsubscribe(self, command: commands.Unsubscribe) -> None:
        other = self._broker.partitioned.other_name(command.topic)
        subscription = self._deliveries.subscribed(command.topic, other, command.consumer)
        subscription.uncounted = command.uncounted
        self._deliveries.drop(subscription)
        self._ok(0)

    def _delete(self, command: commands.Delete) -> None:
        try:
            self._changes.counted(lambda done: partition_operations.delete(self._broker, command.topic, done), command)
        except NoSuchTopic as error:
            if self.passing is None or not self.passing.ask_others(command, error):
                raise
            self._trail.passed_on(command)

    def _ack(self, command: Ack) -> None:
        topic = self._broker.topic(command.topic)
        self._deliveries.settles(topic.channel(command.consumer))
        count = topic.ack(command.consumer, command.ids)
        if command.sync:
            self._changes.stored(topic.flush_offsets, count=count)
        else:
            self._ok(count)

    def _settle_each(self, run: SettlementRun) -> None:
        """Apply a run as its commands one after the other, and answer each."""
        command, topic = run.command, self._broker.topic(run.topic)
        channel = topic.channel(command.consumer)
        if isinstance(command, Ack):
            self._deliveries.settles(channel)
            counts = channel.ack_each(run.ids)
        else:
            dead = isinstance(command, Nack) and command.dead
            counts = channel.settle_each(run.ids, command.lease, self._settler(channel, command), dead=dead)
        answers = b"".join([b"OK 1\n" if count else b"OK 0\n" for count in counts])
        if isinstance(command, Ack) and command.sync:
            self._changes.stored(topic.flush_offsets, answer=lambda: answers, replies=len(counts))
        else:
            self._replies.add(answers)

    def _settle(self, command: Nack | Touch) -> None:
        channel = self._broker.topic(command.topic).channel(command.consumer)
        self._ok(self._settler(channel, command)(channel.leased_under(command.ids, command.lease)))

    def _settler(self, channel: Channel, command: Nack | Touch) -> Callable[[Sequence[IdRange]], int]:
        """The method that a settling command calls for leased ids."""
        if isinstance(command, Touch):
            visibility_s = seconds(command.visibility_ms)
            if visibility_s is None and (own := self._deliveries.subscription_to(command.topic, command.consumer)) is not None:
                visibility_s = own.visibility_s
            return partial(channel.touch, visibility_s=visibility_s)
        if command.uncounted:
            return channel.return_uncounted
        self._deliveries.settles(channel)
        return partial(channel.nack, delay_s=seconds(command.delay_ms), dead=command.dead, failure=command.failure)

    # -- queries

    def _offsets(self, command: commands.Offsets) -> None:
        topic = self._broker.topic(command.topic)

        def make() -> bytes:
            first_id, committed_id = topic.living().id_range(command.at_ms)
            told = topic.settings_queue.incarnation if command.incarnation else None
            return encode_offsets(command.topic, first_id, committed_id, told)

        if command.incarnation and not topic.unused:  # one in memory alone is not on the disk for a question
            held = self._replies.hold()
            topic.settings_queue.identify(lambda: self._replies.fill(held, make))
        else:
            self._replies.in_turn(make)

    def _describe(self, name: str) -> None:
        if self._broker.partitioned.find(name) is None:
            described = self._broker.topic(name)
            self._replies.counted(lambda: json_reply(described.living().describe()))
        else:
            self._replies.counted(lambda: json_reply(partition_operations.describe(self._broker, name)))

    def _numbers(self) -> dict[str, Any]:
        return self._broker.stats()

    def _stats(self) -> Listed:
        return listed_behind(self._numbers(), self._described(None))

    def _described(self, pattern: str | None) -> Iterator[dict[str, Any]]:
        """Descriptions of the topics that this session may see. Raises: BadName."""
        return self._broker.describe(pattern)

    def _sees(self, topic: str) -> bool:
        """Whether the session may see a topic."""
        return True

    # -- administration

    def _config(self, command: commands.Config) -> None:
        name, settings = command.topic, command.settings
        partition_operations.settings_of(self._broker, name)  # raises, if there is none

        def answer() -> bytes:
            return json_reply(partition_operations.settings_of(self._broker, name))

        if settings:
            self._changes.stored(
                lambda done: partition_operations.configure(self._broker, name, settings, done), answer=answer, audited=command
            )
        else:
            self._replies.in_turn(lambda: answer())

def _trace_fields(command: Command) -> dict[str, str]:
    """The trace of a command, for its log line; for a run of publishes the trace of the first."""
    return log_fields(command.bodies[0][: command.hdr]) if isinstance(command, Publish) and command.hdr else {}
