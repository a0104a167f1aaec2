"""Requests to a broker. Each function checks its arguments and makes the command, with the type of the expected reply and its
conversion to a Python value.

Both clients make their methods from these functions (ADR 0079). ``arguments`` has the checks.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from toymq import arguments
from toymq.arguments import Seconds
from toymq.client_base import ClientBase
from toymq.conversation import Conversation
from toymq.delivery_window import Feed
from toymq.message import RANGES_BESIDE_A_FAILURE, RANGES_PER_LINE, Settings, lines_of, to_ranges
from toymq.nack_reason import Reason
from toymq.nack_reason import describe as describe_failure
from toymq.options import DEFAULT_VISIBILITY_S
from toymq.pending_replies import CallSlot, PullSlot
from toymq_py import protocol
from toymq_py.consumer_options import POLL_MODES, Mode
from toymq_py.errors import ProtocolViolation, ToymqError
from toymq_py.failure import Failure
from toymq_py.protocol.frames import DEFAULT_FETCH_BYTES, FETCH_BYTES_MAX
from toymq_py.records import MSG_ID_MAX, IdRange

T = TypeVar("T")


class TopicRange(NamedTuple):
    """The ids that a topic retains, ``next_id`` excluded. ``incarnation``: a word that is new whenever the topic is created;
    None for a topic in memory alone, or one whose settings cannot be stored or trusted."""

    first_id: int
    next_id: int
    incarnation: str | None


@dataclass(slots=True)
class Request(Generic[T]):
    """A request to the broker. ``wait_s``: how many seconds longer than usual the broker may take; ``topic``: the request goes
    to the worker that has this topic."""

    slot: CallSlot
    read: Callable[[Any], T]
    wait_s: float = 0.0
    topic: str = ""

    def result(self) -> T:
        """Return the value of the answer. Raises: the error, when the request failed."""
        answer = self.slot.answer
        if isinstance(answer, ToymqError):
            raise answer
        return self.read(answer)


def _request(
    command: protocol.Command, expect: type[protocol.Reply], read: Callable[[Any], T], wait_s: float = 0.0
) -> Request[T]:
    """Make a request that is sent again after a lost connection."""
    return Request(CallSlot(command, expect, repeatable=True), read, wait_s, getattr(command, "topic", ""))


def _change(command: protocol.Command) -> Request[int]:
    """Make a request that must not be sent twice, and whose OK reply contains a number."""
    return Request(CallSlot(command, protocol.OkReply), _value, topic=getattr(command, "topic", ""))


def _value(reply: protocol.OkReply) -> int:
    return reply.value


def _nothing(_: object) -> None:
    return None


def _json(reply: protocol.JsonReply) -> Any:
    try:
        return json.loads(reply.body)
    except (ValueError, RecursionError) as error:
        raise ProtocolViolation(f"the broker sent {reply.body[:60]!r}, which is not JSON: {error}") from error


def _settings_in_seconds(reply: protocol.JsonReply) -> dict[str, Any]:
    found = _json(reply)
    if not isinstance(found, dict):
        raise ProtocolViolation(f"the broker sent {reply.body[:60]!r}, not settings by name")
    return arguments.settings_in_seconds(found)


def cluster() -> Request[dict[str, Any]]:
    """Ask for the broker's workers or the cluster's groups, and which group has which topic. This is no method of the clients:
    it sends ``moved=0``, after which a worker passes commands for other workers on instead of answering MOVED."""
    return _request(protocol.Cluster(), protocol.JsonReply, _json)


def partition_counts() -> Request[dict[str, int] | None]:
    """Ask how many partitions each partitioned topic has; None from an older broker. From then on the broker answers MOVED on
    this connection, as on every connection of the clients."""
    return _request(protocol.Cluster(moved=True), protocol.JsonReply, lambda reply: _json(reply).get("partitions"))


def partial_stats() -> Request[dict[str, Any]]:
    """Ask for ``stats`` without the workers or groups that do not answer; ``away`` in the result names them. An older broker
    refuses the request."""
    return _request(protocol.Stats(partial=True), protocol.JsonReply, _json)


# -- methods of both clients: each function here is the signature and docstring of the method with its name


def fetch(
    topic: str, from_id: int, max_count: int, *,
    max_bytes: int | None = None, wait: Seconds = 0.0, incarnation: str | None = None,
) -> Request[protocol.BatchReply]:  # fmt: skip
    """Read stored messages without a consumer: nothing is leased, acked or moved.

    Returns: an object with ``count``, ``next_id`` (where to go on reading) and ``frames``, the stored records as bytes:
        ``toymq_py.storage.record.iter_frames(batch.frames)`` yields each with ``msg_id``, ``ts_ns``, ``key``, ``headers`` and
        ``payload``. ``count`` is 0 at the end of the topic.

    Args:
        from_id: the first id to read; ids whose records are lost are skipped.
        max_count, max_bytes: most records and, beyond the first, most bytes of frames, 1 MiB by default.
        wait: time to wait for the first record.
        incarnation: from ``topic_range``; if the topic was deleted and created again since, that is NoSuchTopic.

    Raises: OutOfRange, NoSuchTopic, RequestError, RequestTimeout.
    """
    command = protocol.Fetch(
        arguments.topic(topic), arguments.whole("from_id", from_id, 0, MSG_ID_MAX), arguments.count("max_count", max_count),
        DEFAULT_FETCH_BYTES if max_bytes is None else arguments.whole("max_bytes", max_bytes, 1, FETCH_BYTES_MAX),
        arguments.duration_ms("wait", wait), arguments.incarnation(incarnation),
    )  # fmt: skip
    return _request(command, protocol.BatchReply, lambda reply: reply, command.wait_ms / 1000)


def offsets(topic: str, *, at_ms: int | None = None) -> Request[tuple[int, int]]:
    """Return (first retained id, next id) of a topic. With ``at_ms`` (unix milliseconds) the first is the first id published
    at or after that time.

    Raises: NoSuchTopic, RequestTimeout.
    """
    command = protocol.Offsets(arguments.topic(topic), arguments.unix_ms("at_ms", at_ms))
    return _request(command, protocol.OffsetsReply, lambda reply: (reply.first_id, reply.next_id))


def topic_range(topic: str) -> Request[TopicRange]:
    """Return the range of ids that a topic retains, and its incarnation, which changes when the topic is deleted and created
    again. Raises: NoSuchTopic, RequestTimeout."""
    command = protocol.Offsets(arguments.topic(topic), incarnation=True)
    return _request(command, protocol.OffsetsReply, lambda reply: TopicRange(reply.first_id, reply.next_id, reply.incarnation))


def topics(pattern: str | None = None) -> Request[list[dict[str, Any]]]:
    """Return what ``describe`` returns, for all topics or for those that match. Raises: BadName, RequestTimeout."""
    chosen = None if pattern is None else arguments.topic_or_pattern(pattern, "pattern")
    return _request(protocol.Topics(chosen), protocol.JsonReply, _json)


def describe(topic: str) -> Request[dict[str, Any]]:
    """Return a dict that describes a topic: ``first_id`` and ``next_id``, ``messages``, ``bytes``, ``segments``, ``state``
    ("ok", "degraded" or "failed"), ``settings``, ``consumers``, ``backlog`` and ``scheduled`` (those of the consumer with the
    most; without a consumer the messages that are due, and those that are not yet), and totals since the broker started,
    ``expired_total``, ``dead_lettered_total`` and ``dropped_total``.

    Each consumer is a dict: ``consumer``, ``mode``, ``last_acked`` (an id only if ``has_acked``), ``ready``, ``inflight``,
    ``scheduled``, ``backlog``, ``retrying``, ``oldest_unacked_age_s``, ``sessions``, ``attached``, ``paused``. Times in
    ``settings`` are milliseconds; ``config(topic)`` returns settings in seconds, as ``create`` and ``config`` take them.

    Raises: NoSuchTopic, RequestTimeout.
    """
    return _request(protocol.Describe(arguments.topic(topic)), protocol.JsonReply, _json)


def stats() -> Request[dict[str, Any]]:
    """Return a dict of the broker's figures: ``version``, ``uptime_s``, ``connections``, ``rss_bytes``, ``disk_free_bytes``,
    ``disk_low``, ``fsync_p99_s``, ``limits``, totals since it started (``publish_total``, ``deliver_total``, ``ack_total``,
    ``nack_total``, …), and ``topics``, a list of what ``describe`` returns for each.

    Raises: RequestTimeout.
    """
    return _request(protocol.Stats(), protocol.JsonReply, _json)


def create(topic: str, settings: Settings | None = None) -> Request[None]:
    """Create a topic, or confirm that it exists with these settings.

    Args:
        settings: by name: ``visibility``, ``max_attempts``, ``nack_backoff_min``, ``nack_backoff_max``, ``dedupe_keys``,
            ``backlog_max_messages``, ``backlog_max_bytes``, ``when_full``, ``retain_acked_for``, ``retain_max_age``,
            ``retain_max_bytes``, ``ttl``, ``tier_local_bytes``, ``tier_local_age``. A duration is seconds or a text
            (``60``, ``"2m"``), a size is bytes or a text (``"64MiB"``); ``"default"`` unsets. Those of ``describe`` are in
            milliseconds; ``config`` returns seconds.

    Raises: TopicExists, RequestError, RequestTimeout.
    """
    return _request(protocol.Create(arguments.topic(topic), arguments.settings(settings)), protocol.OkReply, _nothing)


def config(topic: str, settings: Settings | None = None) -> Request[dict[str, Any]]:
    """Change settings, given as in ``create``, and return all that are set, durations in seconds. Without ``settings`` nothing
    changes: ``create(other, config(topic))`` copies them (those of ``describe`` are in milliseconds).

    Raises: NoSuchTopic, BadArgument, RequestTimeout.
    """
    command = protocol.Config(arguments.topic(topic), arguments.settings(settings))
    return _request(command, protocol.JsonReply, _settings_in_seconds)


def delete(topic: str) -> Request[int]:
    """Delete a topic; return how many messages it had.

    Raises: NoSuchTopic, ConnectionLost (the outcome is unknown), RequestTimeout.
    """
    return _change(protocol.Delete(arguments.topic(topic)))


def purge(topic: str) -> Request[int]:
    """Drop all messages of a topic; return how many. Ids go on, consumers and settings stay.

    Raises: NoSuchTopic, ConnectionLost (the outcome is unknown), RequestTimeout.
    """
    return _change(protocol.Purge(arguments.topic(topic)))


def seek(topic: str, consumer: str, to: str | int, *, create: bool = False) -> Request[int]:
    """Move a consumer's position; return the id of its next message. Messages below that id count as acked, the others as
    unacked. The consumer's subscriptions continue from there.

    Args:
        to: ``"earliest"``, ``"latest"``, an id or ``"@<unix-ms>"``.
        create: create the consumer if it does not exist; from then on the topic keeps messages for it. False: NoSuchConsumer.

    Raises: NoSuchConsumer, OutOfRange, NoSuchTopic, ConnectionLost (the outcome is unknown), RequestTimeout.
    """
    topic, consumer, start = arguments.topic(topic), arguments.consumer(consumer), arguments.start("to", to)
    return _change(protocol.Seek(topic, consumer, start, arguments.flag("create", create)))


def forget(topic: str, consumer: str) -> Request[None]:
    """Delete a consumer: its position, its leases, and its hold on the messages that it has not acked. Live subscriptions of it
    end with ConsumerDeleted. A consumer of this name that subscribes later is a new one.

    Raises: NoSuchConsumer, NoSuchTopic, ConnectionLost (the outcome is unknown), RequestTimeout.
    """
    command = protocol.Forget(arguments.topic(topic), arguments.consumer(consumer))
    return Request(CallSlot(command, protocol.OkReply), _nothing, topic=command.topic)


# -- methods that take several requests: many ids do not fit into one line


def ack(
    client: ClientBase, topic: str, consumer: str, ids: Sequence[IdRange], *, sync: bool = False
) -> Iterator[Request[int]]:
    """Ack by id; return how many of the ids were inflight and are now acked.

    Args:
        ids: ascending ranges (first, last).
        sync: wait until the acks are on stable storage.

    Raises: NoSuchTopic, NoSuchConsumer, BadArgument, ConnectionLost (ack again: that is harmless), RequestTimeout.
    """
    ranges = arguments.ids("ids", ids)
    topic, consumer, sync = arguments.topic(topic), arguments.consumer(consumer), arguments.flag("sync", sync)
    client._settle(topic, consumer, ranges)
    for line in lines_of(ranges):
        yield _change(protocol.Ack(topic, consumer, line, sync))


def nack(
    client: ClientBase, topic: str, consumer: str, ids: Sequence[IdRange],
    *, delay: Seconds | None = None, dead: bool = False, reason: Reason = None, error: BaseException | None = None,
    lease: int | None = None,
) -> Iterator[Request[int]]:  # fmt: skip
    """Nack messages by id, whichever connection they were delivered to; return how many were inflight.

    Args:
        ids: ascending ranges (first, last).
        delay: seconds until they are delivered again; 0 means now, None takes the topic's backoff.
        dead: move them to the dead letters at once instead.
        reason, error: why, as a text and an exception, or the exception alone as ``reason``. A dead letter has those of the
            last NACK.
        lease: ``Message.lease``: give back only messages that are still leased under this number, not those that another worker
            has by now.

    Raises: NoSuchTopic, NoSuchConsumer, BadArgument, ConnectionLost (the outcome is unknown), RequestTimeout.
    """
    ranges = arguments.ids("ids", ids)
    arguments.lease(lease)
    failure = describe_failure(reason, error, client._hello, details=client._options.describe_errors)
    topic, consumer, dead = arguments.topic(topic), arguments.consumer(consumer), arguments.flag("dead", dead)
    arguments.to_ms("delay", delay)
    client._settle(topic, consumer, ranges)
    for line in lines_of(ranges, RANGES_PER_LINE if failure is None else RANGES_BESIDE_A_FAILURE):
        yield nack_line(topic, consumer, line, delay, dead=dead, failure=failure, lease=lease)


def redrive(
    client: ClientBase, topic: str, *, ids: Sequence[IdRange] | None = None, max: int | None = None
) -> Iterator[Request[int]]:
    """Move dead letters back to their source topic, for the consumer that failed them; return how many.

    Each moves once: after an unknown outcome or a timeout, call it again for the rest.

    Args:
        topic: the dead-letter topic, ``orders.dlq``.
        ids: ascending ranges (first, last) of dead letters; None for all.
        max: most dead letters to move.

    Raises: NoSuchTopic, BadArgument, ConnectionLost (the outcome is unknown), RequestTimeout.
    """
    whole = protocol.Redrive(arguments.topic(topic), None, None if max is None else arguments.count("max", max))
    if ids is None:
        yield _change(whole)
        return
    moved = 0
    for line in lines_of(arguments.ids("ids", ids)):
        if max is None or moved < max:
            request = _change(replace(whole, ids=line, max_count=None if max is None else max - moved))
            yield request
            moved += request.result()


# -- parts of other methods


def ping() -> Request[None]:
    return _request(protocol.Ping(), protocol.PongReply, _nothing)


def subscription(
    topic: str, consumer: str, window: int, visibility: Seconds | None, mode: Mode | None, start: str | None,
    auto_ack: bool, auto_extend: bool,
) -> protocol.Subscribe:  # fmt: skip
    """Make the SUB command of a subscription. Raises: TypeError, BadName, BadArgument."""
    arguments.flag("auto_ack", auto_ack)
    if arguments.flag("auto_extend", auto_extend) and visibility is None:
        visibility = DEFAULT_VISIBILITY_S
    return protocol.Subscribe(
        arguments.topic_or_pattern(topic), arguments.consumer(consumer), arguments.count("window", window),
        arguments.visibility(visibility), None if start is None else arguments.start("start", start),
        arguments.mode(mode),
    )  # fmt: skip


def pull_command(
    topic: str, consumer: str, max_count: int, wait: Seconds, visibility: Seconds | None, mode: Mode | None
) -> protocol.Pull:
    """Make the PULL command of a ``pull``. Raises: TypeError, BadName, BadArgument."""
    return protocol.Pull(
        arguments.topic_or_pattern(topic), arguments.consumer(consumer), arguments.count("max", max_count),
        arguments.duration_ms("wait", wait), arguments.visibility(visibility),
        mode=arguments.mode(mode, POLL_MODES),
    )  # fmt: skip


def pull(command: protocol.Pull, wait_s: float, conversation: Conversation, feed: Feed) -> Request[list[protocol.MessagePush]]:
    """Make a PULL request that waits up to ``wait_s`` seconds. It is not repeated automatically: its wait would begin anew. If
    the reply is lost, the leases end by their visibility timeout.

    Args:
        conversation: deliveries that no caller takes are given back over it.
        feed: the leases get this feed's lease number.
    """

    def unwanted(messages: Sequence[protocol.MessagePush]) -> None:
        give_back(conversation, feed, messages)

    command = replace(command, wait_ms=round(wait_s * 1000), lease=conversation.lease_of(feed))
    slot = PullSlot(command, unwanted)

    def taken(_: protocol.Reply) -> list[protocol.MessagePush]:
        feed.handed_out(slot.messages)
        return slot.messages

    return Request(slot, taken, wait_s, command.topic)


def give_back(conversation: Conversation, feed: Feed, messages: Sequence[protocol.MessagePush]) -> None:
    """Nack deliveries that no caller takes, so that they are ready again at once and no attempt is counted. Without a
    connection their leases end by their visibility timeout."""
    consumer, lease = feed.command.consumer, conversation.lease_of(feed)
    uncounted = conversation.server is not None and conversation.server.takes_uncounted
    by_topic: dict[str, list[int]] = {}
    for message in messages:
        by_topic.setdefault(message.topic, []).append(message.msg_id)
    for topic, ids in by_topic.items():
        for line in lines_of(to_ranges(ids)):
            delay_ms = None if uncounted else 0  # an older broker counts it
            command = protocol.Nack(topic, consumer, line, delay_ms, uncounted=uncounted, lease=lease)
            conversation.send_now(_change(command).slot)


def nack_line(
    topic: str, consumer: str, ids: Sequence[IdRange], delay: Seconds | None,
    *, dead: bool = False, failure: Failure | None = None, lease: int | None = None,
) -> Request[int]:  # fmt: skip
    """Make one NACK for checked ids that fit into one line; ``lease``: only for messages leased under that number."""
    delay_ms = arguments.to_ms("delay", delay)
    return _change(protocol.Nack(topic, consumer, tuple(ids), delay_ms, dead, failure, lease=lease))


def touch(
    topic: str, consumer: str, ids: Sequence[IdRange], visibility: Seconds | None, *, lease: int | None = None
) -> Request[int]:
    """Renew the leases of checked ids for ``visibility`` seconds; ``lease``: only those under that lease number."""
    command = protocol.Touch(topic, consumer, tuple(ids), arguments.visibility(visibility), lease)
    return _change(command)
