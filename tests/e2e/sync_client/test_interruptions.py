"""Ctrl-C, or an exception of another signal handler, at every place of the blocking client; then the same client goes on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.interruptions import Interrupted, Interrupter, TimeLimit
from tests.support.shares import one_in
from toymq import ClientClosed, Receipt, sync
from toymq.delivery_window import FeedState
from toymq.errors import RequestTimeout
from toymq.sync import Client, Message, Subscription

NEXT_S = 30.0
"""Far below the two minutes of a lease: a message that only its end brings back fails the test."""
LEASE_S = 0.5
"""Of a pull: what an interruption left half read has no other way back."""
PLACES_MIN = 99
"""Each work has some 700 to 2,200; fewer than this, and it was not traced."""
_topics = count()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options = ("--fsync", "never", "--max-topics", "100000", "--visibility", "2m")
    with BrokerProcess(tmp_path_factory.mktemp("data") / "d", *options) as running:
        yield f"toymq://127.0.0.1:{running.port}"


pytestmark = [
    # what a traced garbage collection raises is not raised to anyone, nor is that of a real signal
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:pub_many to .* was dropped:RuntimeWarning"),
]


@dataclass
class Application:
    """Records what an application has been told so far."""

    mq: Client
    topic: str
    told: list[tuple[bytes, Receipt]] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    repeated: list[str] = field(default_factory=list)
    messages: Subscription | None = None

    def pub(self, payload: bytes, key: str | None = None) -> None:
        self.told.append((payload, self.mq.pub(self.topic, payload, key=key)))

    def took(self, message: Message) -> Message:
        if message.id in self.acked:
            self.repeated.append(f"{message.id} came again (attempt {message.attempt})")
        self.seen.add(message.id)
        return message

    def next(self) -> Message:
        assert self.messages is not None
        return self.took(self.messages.next(timeout=NEXT_S))

    def ack(self, message: Message) -> None:
        message.ack()
        self.acked.add(message.id)


def publish(app: Application) -> None:
    app.pub(b"a")
    app.pub(b"b", key="b")
    items = [b"m%d" % number for number in range(5)]
    for item, receipt in zip(items, app.mq.pub_many(app.topic, items, window=2), strict=True):
        app.told.append((item, receipt))


def consume(app: Application) -> None:
    app.ack(app.next())
    message = app.next()
    with message.process():
        pass
    app.acked.add(message.id)
    app.next().nack(0)
    with pytest.raises(ValueError, match="handler"), app.next().process(retry_delay=0):
        raise ValueError("handler")
    message = app.next()
    message.ack(sync=True)
    app.acked.add(message.id)


def subscribe(app: Application) -> None:
    with app.mq.sub(app.topic, "w", window=4) as messages:
        app.messages = messages
        app.ack(app.next())
        app.next()
    app.messages = None


def auto_ack(app: Application) -> None:
    """Consume with ``auto_ack``: messages that the application has not seen must not be acked."""
    app.messages = app.mq.sub(app.topic, "w", window=8, auto_ack=True)
    for message in app.messages:
        app.took(message)
        if len(app.seen) == 3:
            break
    for batch in app.messages.batches(2, 0.01):
        for message in batch:
            app.took(message)
        break


def collect(app: Application) -> None:
    assert app.messages is not None
    for batch in app.messages.batches(3, 0.01):
        for message in list(map(app.took, batch)):
            app.ack(message)
        if len(app.acked) >= 6:
            return


def pull(app: Application) -> None:
    for wait in (0.0, 0.01):
        for message in list(map(app.took, app.mq.pull(app.topic, "w", 2, wait=wait, visibility=LEASE_S))):
            app.ack(message)
    app.mq.pull(app.topic, "none", 1)


def reconnect(app: Application) -> None:
    app.ack(app.next())
    connection = app.mq._link._socket
    assert connection is not None
    connection.shutdown(2)
    app.pub(b"after the loss")
    app.ack(app.next())


def administer(app: Application) -> None:
    app.mq.ping()
    assert app.mq.describe(app.topic)["topic"] == app.topic
    app.mq.offsets(app.topic)
    app.mq.config(app.topic, {"visibility": 30})


def leave(app: Application) -> None:
    app.ack(app.next())
    app.next()
    app.mq.drain(1)
    app.mq.close()


Work = Callable[[Application], None]
SUBSCRIBED: dict[str, Work] = {"consume": consume, "collect": collect, "reconnect": reconnect, "leave": leave}
UNSUBSCRIBED: dict[str, Work] = {
    "publish": publish, "subscribe": subscribe, "auto_ack": auto_ack, "pull": pull, "administer": administer,
}  # fmt: skip


def interrupted(url: str, work: Work, at: int, error: type[Interrupted] = Interrupted) -> str | None:
    """Interrupt ``work`` at the ``at``-th place, go on with the same client, and check what is delivered. Returns: the place;
    None beyond the end."""
    topic = f"t{next(_topics)}"
    with sync.connect(url, timeout_s=NEXT_S) as checker:
        list(checker.pub_many(topic, [b"p%d" % number for number in range(8)]))
        mq = sync.connect(url, timeout_s=NEXT_S, backoff_min_s=0.001, backoff_max_s=0.002)
        app, interrupter = Application(mq, topic), Interrupter(at, error)
        try:
            if work in SUBSCRIBED.values():
                app.messages = mq.sub(topic, "w", window=8)
            with interrupter:
                work(app)
            if not interrupter.raised_in:
                return None
            # Python prints what is raised while it closes a generator, logging while it formats, and both go on
            printed = ("__del__", "__iter__", "batches", "<genexpr>", "__str__")
            assert not interrupter.swallowed or interrupter.raised_in.endswith(printed)
            if interrupter.raised_in.endswith("__enter__"):
                return interrupter.raised_in  # the `with` statement loses the subscription, which the client still has
            go_on(app, checker)
        except Exception as error:
            error.add_note(f"interrupted at {at}: {interrupter.raised_in}")
            raise
        finally:
            mq.close()
    return interrupter.raised_in


def go_on(app: Application, checker: Client) -> None:
    mq, topic = app.mq, app.topic
    if mq._closed:
        with pytest.raises(ClientClosed):
            mq.ping()
        mq.close()
        assert all(link._socket is None and link.conversation.is_closed for link in mq._links), "close() was called again"
    else:
        for number in range(3):
            app.pub(b"after %d" % number)
        mq.ping()
    if not mq._closed and (app.messages is None or app.messages._feed.state is not FeedState.LIVE):
        app.messages = mq.sub(topic, "w", window=100)
    log = {message.id: message.payload for message in checker.pull(topic, "checker", 1000)}
    payloads = list(log.values())
    assert len(set(payloads)) == len(payloads), f"stored twice: {sorted(payloads)}"
    wrong = [(payload, receipt) for payload, receipt in app.told if log.get(receipt.msg_id) != payload]
    assert wrong == [], "receipts of what the log does not have there"
    duplicates = [told for told in app.told if told[1].duplicate]
    assert duplicates == [], "receipts of messages that were published once"
    if mq._closed:
        app.messages = checker.sub(topic, "w", window=100)
    had = app.seen - app.acked
    while missing := log.keys() - app.acked - had:
        try:
            app.ack(app.next())
        except RequestTimeout:
            raise AssertionError(f"{sorted(missing)} of {len(log)} did not come") from None
    assert app.repeated == []


def each_place(url: str, name: str, share: int, error: type[Interrupted]) -> None:
    """Interrupt a kind of work at one place in ``share``; different kinds begin at different places."""
    for at in count(sum(map(ord, name)) % share, share):
        if interrupted(url, (SUBSCRIBED | UNSUBSCRIBED)[name], at, error) is None:
            break
    assert at > PLACES_MIN, f"only {at} places: the work was not traced"


@one_in(97)
@pytest.mark.parametrize("name", [*SUBSCRIBED, *UNSUBSCRIBED])
def test_an_interrupted_client_goes_on(url: str, name: str, share: int) -> None:
    each_place(url, name, share, Interrupted)


@one_in(97)
@pytest.mark.parametrize("name", ["publish", "reconnect"])
def test_a_time_limit_is_not_taken_for_an_error_of_the_socket(url: str, name: str, share: int) -> None:
    each_place(url, name, share, TimeLimit)
