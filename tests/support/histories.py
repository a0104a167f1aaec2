"""Makes the events of short histories, for tests of the chaos checker."""

from toymq_chaos import history
from toymq_chaos.history import Event, digest_of

MS = 1_000_000


def pub(
    t_ms: int, n: int, *, result: history.Result = "ok", msg_id: int | None = None, process: str = "p.1",
    sent_ms: int | None = None,
) -> Event:  # fmt: skip
    msg_id = n if msg_id is None and result in ("ok", "dup") else msg_id
    sent_ns = None if sent_ms is None else sent_ms * MS
    return Event(
        t_ms * MS, process, "pub", result, topic="t", key=f"k{n}", digest=digest_of(b"%d" % n), id=msg_id, sent_ns=sent_ns
    )


def deliver(t_ms: int, n: int, *, attempt: int = 1, msg_id: int | None = None, process: str = "c.1") -> Event:
    msg_id = n if msg_id is None else msg_id
    digest = digest_of(b"%d" % n)
    return Event(
        t_ms * MS, process, "deliver", topic="t", consumer="c", key=f"k{n}", digest=digest, id=msg_id, attempt=attempt
    )


def ack(
    t_ms: int, n: int, *, sync: bool | None = None, process: str = "c.1", op: history.Op = "ack",
    result: history.Result = "ok", sent_ms: int | None = None,
) -> Event:  # fmt: skip
    sent_ns = None if sent_ms is None else sent_ms * MS
    return Event(t_ms * MS, process, op, result, topic="t", consumer="c", id=n, sync=sync, sent_ns=sent_ns)


def nack(t_ms: int, n: int, *, process: str = "c.1", sent_ms: int | None = None) -> Event:
    return ack(t_ms, n, process=process, op="nack", sent_ms=sent_ms)


def sub(t_ms: int, process: str) -> Event:
    return Event(t_ms * MS, process, "sub", topic="t", consumer="c", sent_ns=t_ms * MS)


def of(t_ms: int, op: history.Op, process: str = "broker") -> Event:
    return Event(t_ms * MS, process, op)


START = Event(0, "broker", "start", visibility_ms=1000)
SUB = sub(0, "c.1")
DRAINED = Event(10**12, "supervisor", "drained")


def kill(t_ms: int) -> Event:
    return of(t_ms, "kill")


LIFE = [START, SUB, pub(1, 0, sent_ms=1), deliver(2, 0)]
"""A message that is not acked yet."""
AFTER = [ack(2001, 0, process="c.2"), DRAINED]
TOO_EARLY = "a message came again before its visibility timeout, without a nack"
