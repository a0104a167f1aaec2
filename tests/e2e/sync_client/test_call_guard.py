"""A blocking client that threads share by mistake: the second one is refused, the first one goes on."""

import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from types import FrameType

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.interruptions import Interrupted
from toymq import sync
from toymq.errors import ConfigError
from toymq.sync import Client, Message, Subscription
from toymq.sync.call_guard import CallGuard, one_thread

REFUSED = "another thread is in a call of this client: connect once for each thread, or hold a lock around each call"
WAIT_S = 30.0
_topics = count()


class Guarded:
    """An object with one guarded method."""

    def __init__(self) -> None:
        self._guard = CallGuard()

    @one_thread
    def call(self, inside: Callable[[], object]) -> object:
        return inside()


def in_thread(function: Callable[[], object]) -> object:
    """Make a call in another thread. Returns: its result or its exception."""
    got: list[object] = []

    def run() -> None:
        try:
            got.append(function())
        except BaseException as error:  # noqa: BLE001 (whatever it is, the test compares it)
            got.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(WAIT_S)
    assert not thread.is_alive(), "a refused call does not wait"
    return got[0]


def is_refusal(outcome: object) -> bool:
    return isinstance(outcome, ConfigError) and str(outcome) == REFUSED


class TestCallGuard:
    def test_a_call_in_a_call_of_the_same_thread_passes(self) -> None:
        guarded = Guarded()
        assert guarded.call(lambda: guarded.call(lambda: "inner")) == "inner"
        assert not guarded._guard.holders

    def test_another_thread_is_refused_and_does_not_end_the_first_one(self) -> None:
        guarded = Guarded()

        def inside() -> tuple[object, object]:
            return in_thread(lambda: guarded.call(lambda: None)), in_thread(lambda: guarded.call(lambda: None))

        outcomes = guarded.call(inside)
        assert isinstance(outcomes, tuple)
        assert all(map(is_refusal, outcomes)), outcomes
        assert in_thread(lambda: guarded.call(lambda: "afterwards")) == "afterwards"

    def test_an_exception_leaves_it_free(self) -> None:
        guarded = Guarded()
        with pytest.raises(ZeroDivisionError):
            guarded.call(lambda: 1 / 0)
        assert in_thread(lambda: guarded.call(lambda: "free")) == "free"

    def test_a_signal_handler_that_raises_leaves_it_free(self) -> None:
        """With a lock, the exception might be raised after ``acquire`` and before the ``try``, and no other thread would ever
        get in."""
        guarded = Guarded()
        code = guarded.call.__func__.__code__  # type: ignore[attr-defined]
        raised = 0

        def handler(_: int, frame: FrameType | None) -> None:
            nonlocal raised
            if frame is not None and frame.f_code is code:
                raised += 1
                raise Interrupted

        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 5e-5, 5e-5)
        try:
            for _ in range(2_000_000):
                with suppress(Interrupted):
                    guarded.call(int)
                assert not guarded._guard.holders
                if raised >= 100:
                    break
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert raised, "the handler raised in the guard"

    def test_a_child_of_a_fork_is_free_of_the_threads_that_it_does_not_have(self) -> None:
        guarded = Guarded()
        guarded._guard.holders[0] = [threading.get_ident() + 1]
        guarded._guard.after_fork()
        assert not guarded._guard.holders

        def fork_inside() -> bool:
            guarded._guard.after_fork()
            return bool(guarded._guard.holders)

        assert guarded.call(fork_inside) is True, "a thread that forks in a call is in that call in the child, too"
        assert not guarded._guard.holders


def _publishing(mq: Client) -> Iterator[object]:
    return iter(mq.pub_many("guarded", [b"x"]))


def _process(message: Message) -> None:
    with message.process():
        pass


def _fails_in_process(message: Message) -> None:
    with message.process():
        raise ZeroDivisionError


CLIENT_CALLS: dict[str, Callable[[Client], object]] = {
    "ack": lambda mq: mq.ack("guarded", "c", [(0, 0)]),
    "close": lambda mq: mq.close(),
    "config": lambda mq: mq.config("guarded"),
    "create": lambda mq: mq.create("guarded.other"),
    "delete": lambda mq: mq.delete("guarded"),
    "describe": lambda mq: mq.describe("guarded"),
    "drain": lambda mq: mq.drain(1),
    "fetch": lambda mq: mq.fetch("guarded", 0, 1),
    "forget": lambda mq: mq.forget("guarded", "c"),
    "nack": lambda mq: mq.nack("guarded", "c", [(0, 0)]),
    "offsets": lambda mq: mq.offsets("guarded"),
    "topic_range": lambda mq: mq.topic_range("guarded"),
    "open": lambda mq: mq.open(),
    "ping": lambda mq: mq.ping(),
    "pub": lambda mq: mq.pub("guarded", b"x"),
    "pub_json": lambda mq: mq.pub_json("guarded", {"a": 1}),
    "pub_value": lambda mq: mq.pub_value("guarded", {"a": 1}),
    "pub_many": lambda mq: next(_publishing(mq)),
    "pull": lambda mq: mq.pull("guarded", "p"),
    "purge": lambda mq: mq.purge("guarded"),
    "redrive": lambda mq: mq.redrive("guarded.dlq"),
    "seek": lambda mq: mq.seek("guarded", "c", "latest"),
    "stats": lambda mq: mq.stats(),
    "sub": lambda mq: mq.sub("guarded", "c2"),
    "topics": lambda mq: mq.topics(),
    "__enter__": lambda mq: mq.__exit__(None, None, None),
}
SUBSCRIPTION_CALLS: dict[str, Callable[[Subscription], object]] = {
    "batches": lambda messages: next(messages.batches(10, 0)),
    "close": lambda messages: messages.close(),
    "next": lambda messages: messages.next(0),
    "__iter__": lambda messages: next(iter(messages)),
    "__enter__": lambda messages: messages.__exit__(None, None, None),
}
MESSAGE_CALLS: dict[str, Callable[[Message], object]] = {
    "ack": lambda message: message.ack(),
    "dead_letter": lambda message: message.dead_letter(),
    "extend": lambda message: message.extend(),
    "nack": lambda message: message.nack(),
    "process": _process,
    "process that fails": _fails_in_process,
}


NEEDS_NO_CONNECTION = {"json", "value"}
"""For any thread."""


@pytest.mark.parametrize(
    ("kind", "calls"), [(Client, CLIENT_CALLS), (Subscription, SUBSCRIPTION_CALLS), (Message, MESSAGE_CALLS)]
)
def test_the_tables_have_every_method(kind: type, calls: dict[str, object]) -> None:
    methods = {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}
    assert methods - NEEDS_NO_CONNECTION <= set(calls)


def test_every_method_refuses_a_second_thread_and_the_first_one_goes_on(broker: BrokerProcess) -> None:
    """Found: a second thread was noticed only while the first one waited in poll. Otherwise there were raw errors of poll and
    of a bytearray, "Bad file descriptor; reconnecting", and threads that waited for ever."""
    inside, leave = threading.Event(), threading.Event()
    receipts: list[int] = []

    def items() -> Iterator[bytes]:
        inside.set()
        assert leave.wait(WAIT_S)
        yield b"1"

    with sync.connect(f"127.0.0.1:{broker.port}") as mq, mq.sub("guarded", "c") as messages:
        mq.pub("guarded", b"0")
        message = messages.next(WAIT_S)
        first = threading.Thread(target=lambda: receipts.extend(one.msg_id for one in mq.pub_many("guarded", items())))
        first.start()
        assert inside.wait(WAIT_S)
        outcomes: dict[str, object] = {}
        try:
            outcomes |= {f"Client.{name}": in_thread(partial(call, mq)) for name, call in CLIENT_CALLS.items()}
            for name, use in SUBSCRIPTION_CALLS.items():
                outcomes[f"Subscription.{name}"] = in_thread(partial(use, messages))
            outcomes |= {f"Message.{name}": in_thread(partial(act, message)) for name, act in MESSAGE_CALLS.items()}
        finally:
            leave.set()
            first.join(WAIT_S)
        assert {name: outcome for name, outcome in outcomes.items() if not is_refusal(outcome)} == {}
        assert receipts == [1], "the first thread's call is whole"
        message.ack()
        assert messages.next(WAIT_S).id == 1, "no refused call has sent anything, closed or deleted"


def test_one_iterator_in_two_threads_is_refused_by_name(broker: BrokerProcess) -> None:
    """Found: the error was Python's "generator already executing", which does not mention the client."""
    inside, leave = threading.Event(), threading.Event()

    def items() -> Iterator[bytes]:
        inside.set()
        assert leave.wait(WAIT_S)
        yield b"1"

    with sync.connect(f"127.0.0.1:{broker.port}") as mq:
        publishing = iter(mq.pub_many("guarded.iterator", items()))
        first = threading.Thread(target=lambda: next(publishing))
        first.start()
        assert inside.wait(WAIT_S)
        outcome = in_thread(lambda: next(publishing))
        leave.set()
        first.join(WAIT_S)
        assert is_refusal(outcome), outcome


def test_threads_that_share_a_client_get_one_error_and_nothing_else(broker: BrokerProcess) -> None:
    """Found: eleven runs of this test gave six kinds of errors, and two threads that did not end."""
    heard: list[str] = []  # threads count in a Counter one over the other
    topic = f"shared.{next(_topics)}"
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(5):
            with sync.connect(f"127.0.0.1:{broker.port}") as mq:

                def publish(mq: Client = mq) -> None:
                    for _ in range(60):
                        try:
                            mq.pub(topic, b"x")
                        except BaseException as error:  # noqa: BLE001 (each kind is counted)
                            heard.append("refused" if is_refusal(error) else repr(error))
                        else:
                            heard.append("stored")

                threads = [threading.Thread(target=publish, daemon=True) for _ in range(3)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(WAIT_S)
                assert not any(thread.is_alive() for thread in threads), "no thread waits for another one's answer"
    finally:
        sys.setswitchinterval(interval)
    told = Counter(heard)
    assert set(told) == {"stored", "refused"}, told
    assert sum(told.values()) == 5 * 3 * 60
    with sync.connect(f"127.0.0.1:{broker.port}") as mq:
        assert mq.offsets(topic) == (0, told["stored"]), "what was told as stored is stored once, and nothing else"


def test_close_by_a_second_thread_does_not_close(broker: BrokerProcess) -> None:
    with sync.connect(f"127.0.0.1:{broker.port}") as mq, mq.sub("closed.by.two", "c") as messages:
        got: list[int] = []
        waiting = threading.Thread(target=lambda: got.append(messages.next(WAIT_S).id))
        waiting.start()
        while not mq._guard.holders:
            assert waiting.is_alive()
        with pytest.raises(ConfigError, match="another thread is in a call"):
            mq.close()
        with sync.connect(f"127.0.0.1:{broker.port}") as other:
            other.pub("closed.by.two", b"x")
        waiting.join(WAIT_S)
        assert got == [0]
