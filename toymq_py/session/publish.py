"""PUB: publish a run of messages. Contract: protocol.md, "PUB"; ADR 0013, 0184."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from toymq_py.broker import Broker
from toymq_py.disk_errors import storage_error
from toymq_py.errors import Moved, RequestError
from toymq_py.partitions import Partitioned
from toymq_py.protocol import Publish
from toymq_py.routes import Router
from toymq_py.session.refused_sequences import RefusedSequences
from toymq_py.session.replies import PendingReply, Replies
from toymq_py.topic import Appended, Duplicate, Published, Refused, Topic


def publish(
    command: Publish, broker: Broker, replies: Replies, refused: RefusedSequences, on_topic_created: Callable[[str], None]
) -> bool:
    """Publish a run, and queue a reply to each message. Returns: whether one of the replies is a fatal error.

    Raises: as ``Broker.topic_to_publish``; then no reply is queued.
    """
    known = command.topic in broker.topics
    topic = broker.topic_to_publish(command.topic)
    if not known:
        on_topic_created(command.topic)
    return answer(_outcomes(command, topic, refused), broker, replies)


def _outcomes(command: Publish, topic: Topic, refused: RefusedSequences) -> Sequence[Published]:
    keys, bodies, headers = command.keys, command.bodies, None
    if command.hdr:
        headers = [body[: command.hdr] for body in bodies]
        bodies = [body[command.hdr :] for body in bodies]
    if command.seqs is None:
        return topic.publish(keys, bodies, headers, command.delays_ms, command.ttls_ms, shape=command.shape)
    return _publish_sequenced(topic, command, bodies, headers, refused)


def answer(outcomes: Iterable[Published | PendingReply], broker: Broker, replies: Replies) -> bool:
    """Queue the replies of publishes, with a held place for one that another worker makes. Returns: whether one of them is a
    fatal error, behind which none is queued."""
    for outcome in outcomes:
        if type(outcome) is Appended:
            replies.add_appended(outcome)
        elif type(outcome) is Duplicate:
            broker.metrics.duplicate_total += outcome.count
            replies.add_duplicate(outcome)
        elif type(outcome) is PendingReply:
            replies.hold(outcome)
        elif type(outcome) is Refused:
            for _ in range(outcome.count):
                replies.add_error(outcome.error)
            if outcome.error.fatal:
                return True
    return False


def _publish_sequenced(
    topic: Topic, command: Publish, bodies: list[bytes], headers: list[bytes] | None, refused: RefusedSequences
) -> list[Published]:
    """Publish in parts: after a refused publish, its producer's later ones are refused, and those of other producers go on."""
    name, keys, sequences, delays_ms, ttls_ms = topic.name, command.keys, command.seqs, command.delays_ms, command.ttls_ms
    assert sequences is not None
    answers: list[Published] = []
    at = 0
    while at < len(keys):
        stop = refused.admit(name, keys, sequences, at, topic.highest_sequence)
        if stop == at:
            answers.append(Refused(1, refused.error(name, keys[at])))
            at += 1
            continue
        part = slice(at, stop)
        outcomes = topic.publish_sequenced(
            keys[part], bodies[part], headers and headers[part], sequences[part],
            delays_ms and delays_ms[part], ttls_ms and ttls_ms[part],
        )  # fmt: skip
        answers += outcomes
        for outcome in outcomes:
            rows = slice(at, at + outcome.count)
            if outcome.error is not None:
                refused.refuse(name, keys[rows], sequences[rows])
            else:
                refused.watch(outcome.commit, name, keys[rows], sequences[rows])
            at += outcome.count
    return answers


def grouped(command: Publish, whole: Partitioned, router: Router) -> Iterator[tuple[Publish, list[int]]]:
    """Split a run of publishes to a partitioned topic: one run for each partition, with the rows that it takes."""
    blocks = [body[: command.hdr] for body in command.bodies] if command.hdr else None
    rows_of: dict[int, list[int]] = {}
    for row, number in enumerate(
        router.numbers(whole, command.keys, routes=command.routes, blocks=blocks, sequences=command.seqs)
    ):
        rows_of.setdefault(number, []).append(row)
    for number, rows in rows_of.items():
        delays_ms, ttls_ms, seqs = command.delays_ms, command.ttls_ms, command.seqs
        yield Publish(
            whole.names[number], [command.keys[row] for row in rows], [command.bodies[row] for row in rows], command.hdr,
            None if delays_ms is None else [delays_ms[row] for row in rows],
            None if ttls_ms is None else [ttls_ms[row] for row in rows],
            None if seqs is None else [seqs[row] for row in rows],
            command.shape,
        ), rows  # fmt: skip


def publish_part(part: Publish, broker: Broker, refused: RefusedSequences) -> list[Published]:
    """Publish to one partition. Returns: an outcome for each row. A failure is an outcome, too, and is not raised: other rows
    of the run have theirs by now."""
    try:
        outcomes = _outcomes(part, broker.topic_to_publish(part.topic), refused)
    except (RequestError, OSError) as error:
        refusal = error if isinstance(error, RequestError) else storage_error(error)
        if part.seqs is not None:  # as ``Handler`` does for a topic that is not partitioned
            refused.refuse(part.topic, part.keys, part.seqs, moved=isinstance(refusal, Moved))
        return [Refused(1, refusal.bare())] * len(part.keys)
    each: list[Published] = []
    for outcome in outcomes:
        if type(outcome) is Appended:
            first_id, count, size = outcome.first_id, outcome.count, outcome.size // outcome.count
            each += [Appended(outcome.commit, msg_id, 1, size) for msg_id in range(first_id, first_id + count)]
        elif type(outcome) is Duplicate:
            each += [Duplicate(outcome.commit, outcome.first_id)] * outcome.count
        elif type(outcome) is Refused:
            each += [Refused(1, outcome.error)] * outcome.count
    return each
