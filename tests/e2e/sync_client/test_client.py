"""The blocking client against a real broker."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from toymq import ClientClosed, ConnectFailed, sync
from toymq.codecs import values
from toymq.message import Receipt
from toymq.sync import Client
from toymq_py.errors import (
    BadArgument,
    BadName,
    ConnectionLost,
    NoSuchConsumer,
    NoSuchTopic,
    OutOfRange,
    PayloadTooLarge,
    TopicExists,
)
from toymq_py.storage.record import iter_frames


def test_publish_and_consume_with_everything(client: Client) -> None:
    headers = {"Trace": "0-1-2", "Name": "wörld"}
    assert client.pub("all", b"a\nb", key="k", headers=headers) == Receipt(0, duplicate=False)
    assert client.pub("all", b"a\nb", key=b"k") == Receipt(0, duplicate=True)
    client.pub("all", b"")
    with client.sub("all", "c", window=10, visibility=30, start="earliest") as subscription:
        first, second = subscription.next(5), subscription.next(5)
        assert (first.topic, first.id, first.attempt, first.key, first.payload) == ("all", 0, 1, b"k", b"a\nb")
        assert first.headers == headers
        assert (second.key, second.headers, second.payload) == (b"", {}, b"")
        assert first.extend(60)
        first.ack()
        second.nack(0)
        again = subscription.next(5)
        assert (again.id, again.attempt) == (1, 2)
        again.ack()
    (found,) = client.describe("all")["consumers"]
    assert (found["consumer"], found["last_acked"], found["backlog"], found["sessions"]) == ("c", 1, 0, 0)


def test_a_stream_in_both_directions(client: Client) -> None:
    """Publish while deliveries pile up: neither the client nor the broker may stall."""
    subscription = client.sub("stream", "c", window=5000)
    items = [(None if n % 3 else b"k%d" % n, b"%d" % n * 50) for n in range(20_000)]
    receipts = list(client.pub_many("stream", iter(items), window=500))
    assert [receipt.msg_id for receipt in receipts] == list(range(20_000))
    got = []
    for message in subscription:
        got.append(message.payload)
        message.ack()
        if len(got) == 20_000:
            subscription.close()
    assert got == [payload for _, payload in items]
    assert client.describe("stream")["consumers"][0]["backlog"] == 0


def test_pub_many_takes_headers_for_each_item(client: Client) -> None:
    """Found: only ``pub`` took headers."""
    list(client.pub_many("headed", [("k", b"x", {"color": "red"}), b"plain"]))
    with client.sub("headed", "c") as messages:
        assert [messages.next(5).headers for _ in range(2)] == [{"color": "red"}, {}]


def test_a_refused_publish_says_why_and_the_connection_lives(client: Client) -> None:
    with pytest.raises(BadName):
        client.pub("../x", b"")
    with pytest.raises(BadArgument):
        client.pub("t", b"", key="two words")
    with pytest.raises(PayloadTooLarge):
        client.pub("t", bytes(3_000_000))
    assert client.pub("t", b"x").msg_id == 0


def test_looking_and_arranging(client: Client) -> None:
    client.create("made", {"visibility": 5})
    client.create("made", {"visibility": "5s"})
    with pytest.raises(TopicExists):
        client.create("made", {"visibility": 6})
    assert client.config("made", {"dedupe_keys": 7}) == {"visibility": 5, "dedupe_keys": 7}
    assert client.config("made", {"visibility": "default"}) == {"dedupe_keys": 7}
    for n in range(5):
        client.pub("made", b"%d" % n)
    assert client.offsets("made") == (0, 5)
    assert client.offsets("made", at_ms=0) == (0, 5)
    batch = client.fetch("made", 1, 2)
    assert ([frame.payload for frame in iter_frames(batch.frames)], batch.next_id) == ([b"1", b"2"], 3)
    assert client.fetch("made", 5, 1, wait=0.01).count == 0
    with pytest.raises(OutOfRange) as caught:
        client.fetch("made", 6, 1)
    assert caught.value.first_id == 0
    assert [topic["topic"] for topic in client.topics("made")] == ["made"]
    assert client.stats()["connections"] >= 1
    assert client.ping() > 0
    client.sub("made", "c").close()
    assert client.seek("made", "c", "3") == 3
    assert client.seek("made", "c", 2) == 2, "an id is a number everywhere else"
    with pytest.raises(NoSuchConsumer, match=r"made has no consumer cc: it has c$"):
        client.seek("made", "cc", "latest")
    assert [one["consumer"] for one in client.describe("made")["consumers"]] == ["c"]
    assert client.seek("made", "cc", "latest", create=True) == 5
    client.forget("made", "cc")
    client.forget("made", "c")
    assert client.delete("made") == 5
    with pytest.raises(NoSuchTopic):
        client.describe("made")


def test_a_closed_client_says_so(broker: BrokerProcess) -> None:
    client = sync.connect(f"127.0.0.1:{broker.port}")
    subscription = client.sub("closed", "c")
    client.pub("closed", b"x")
    message = subscription.next(5)
    message.ack()
    client.close()
    client.close()
    with pytest.raises(ConnectionLost):
        client.ping()
    with sync.connect(f"127.0.0.1:{broker.port}") as other:
        assert other.describe("closed")["consumers"][0]["backlog"] == 0, "close sends the acks that were collected"


def test_a_producer_that_numbers_its_messages(client: Client) -> None:
    first = client.pub("numbered", b"a", key="p", seq=1, headers={"n": "1"})
    second = client.pub("numbered", b"b", key="p", seq=5)
    again = client.pub("numbered", b"a", key="p", seq=1)
    assert [(r.msg_id, r.duplicate) for r in (first, second, again)] == [(0, False), (1, False), (1, True)]
    for key, seq in ((None, 1), ("p", -1), ("p", 2**64)):
        with pytest.raises(BadArgument):
            client.pub("numbered", b"", key=key, seq=seq)
    assert client.offsets("numbered") == (0, 2)


def test_pub_many_that_nothing_iterates_warns_that_nothing_was_published(client: Client) -> None:
    """Found by a trial: ``mq.pub_many(...)`` as a statement published nothing, in silence."""
    with pytest.warns(RuntimeWarning, match=r"pub_many to unsaid was dropped before .*: iterate it; list\(mq"):
        client.pub_many("unsaid", [b"0"])
    assert next(client.pub_many("said", [b"0"])).msg_id == 0
    assert [receipt.msg_id for receipt in client.pub_many("said", [b"1"])] == [1]


def test_trace_context_is_injected(broker: BrokerProcess) -> None:
    def inject(headers: dict[str, str]) -> None:
        headers["traceparent"] = "00-1"

    with sync.connect(f"127.0.0.1:{broker.port}", inject_headers=inject) as client:
        client.pub("traced", b"x", headers={"a": "b"})
        list(client.pub_many("traced", [b"y"]))
        with client.sub("traced", "c") as messages:
            assert [messages.next(5).headers for _ in range(2)] == [{"a": "b", "traceparent": "00-1"}, {"traceparent": "00-1"}]


def test_a_call_that_is_interrupted_leaves_the_connection_usable(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C interrupts a call that waits: its reply, which comes later, is given to no other call."""
    exchange = client._link.exchange

    def interrupted(wait_s: float | None) -> None:
        monkeypatch.setattr(client._link, "exchange", exchange)
        exchange(0)
        raise KeyboardInterrupt

    for call in (client.stats, lambda: client.pub("interrupted", b"x"), lambda: client.sub("interrupted", "c")):
        monkeypatch.setattr(client._link, "exchange", interrupted)
        with pytest.raises(KeyboardInterrupt):
            call()
        client.ping()
    assert client.offsets("interrupted") == (0, 1)
    with client.sub("interrupted", "c") as messages:
        assert messages.next(5).payload == b"x"


def test_dead_letters_and_back(client: Client) -> None:
    client.pub("jobs", b"poison")
    with client.sub("jobs", "c") as messages:
        message = messages.next(5)
        assert message.dead_letter("poison")
        assert not message.dead_letter("poison"), "its lease is over"
        with client.sub("jobs.dlq", "audit") as letters:
            letter = letters.next(5)
        assert (letter.payload, letter.headers["toymq-reason"]) == (b"poison", "poison")
        assert client.redrive("jobs.dlq", ids=[(0, 0)]) == 1
        assert client.redrive("jobs.dlq") == 0
        again = messages.next(5)
        assert again.headers["toymq-redrives"] == "1"
        assert client.nack("jobs", "c", [(again.id, again.id)], dead=True, reason="tired") == 1


def test_a_pull_beside_a_subscription(client: Client) -> None:
    list(client.pub_many("shared", [b"%d" % n for n in range(4)]))
    with client.sub("shared", "w", mode="shared", window=2) as messages:
        held = [messages.next(5), messages.next(5)]
        while len(held) < 4:
            held += client.pull("shared", "w", 9, wait=5)
        assert sorted(message.id for message in held) == [0, 1, 2, 3]
        for message in held:
            message.ack(sync=True)
        assert client.pull("shared", "w") == []
        assert client.fetch("shared", 4, 1, wait=0.001).count == 0
    (consumer,) = client.describe("shared")["consumers"]
    assert (consumer["backlog"], consumer["mode"]) == (0, "shared")


def test_a_pull_waits_for_a_pattern_and_sends_acks_before(client: Client, broker: BrokerProcess) -> None:
    client.pub("wait.a", b"x")
    (message,) = client.pull("wait.*", "c", wait=5)
    message.ack()
    publisher = sync.connect(f"127.0.0.1:{broker.port}")

    def publish() -> None:
        while publisher.describe("wait.a")["consumers"][0]["backlog"]:
            publisher.ping()
        publisher.pub("wait.b", b"y")
        publisher.close()

    thread = threading.Thread(target=publish)
    thread.start()
    (message,) = client.pull("wait.*", "c", wait=20)
    thread.join(10)
    assert (message.topic, message.payload) == ("wait.b", b"y")


@pytest.mark.parametrize("answered", [False, True])
def test_a_pull_that_is_interrupted_loses_nothing(client: Client, monkeypatch: pytest.MonkeyPatch, answered: bool) -> None:
    """The pull is interrupted while it waits, or when its answer has already arrived."""
    topic = f"cut.{answered}"
    assert client.pull(topic, "c") == []
    if answered:
        client.pub(topic, b"x")
    link = client._waiting_link
    assert link is not None

    def interrupted(*_: object) -> None:
        link.exchange(0)  # it is said
        while answered and not link.conversation.idle:
            link.exchange(5)
        raise KeyboardInterrupt

    monkeypatch.setattr(link, "until", interrupted)
    monkeypatch.setattr("toymq.sync.client.GOODBYE_S", 20)
    began = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        client.pull(topic, "c", wait=3600, visibility=3600)
    assert time.perf_counter() - began < 15, "the broker was told that none waits"
    monkeypatch.undo()
    if not answered:
        assert client._waiting_link is None, "the end of its connection ended the wait"
        client.pub(topic, b"x")
    (message,) = client.pull(topic, "c", wait=5)
    assert message.attempt == 1, "no code saw it"
    message.ack()


def test_a_delay_and_a_ttl(client: Client) -> None:
    client.pub("later", b"a", delay=0.02)
    list(client.pub_many("later", [b"b"], ttl=60))
    list(client.pub_many("later", [b"c"], delay=3600))
    with client.sub("later", "c") as messages:
        assert {messages.next(5).payload for _ in range(2)} == {b"a", b"b"}
        assert client.describe("later")["consumers"][0]["scheduled"] == 1
    with pytest.raises(BadArgument):
        client.pub_many("later", [b"x"], delay=-1).__next__()


def test_a_unix_socket_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "none.sock"
    with pytest.raises(ConnectFailed, match=f"no broker at unix:{path}: No such file"):
        sync.connect(f"unix:{path}")


def test_one_warning_an_outage_with_two_connections(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A call uses one of the client's two connections and waits there; meanwhile the other one is not looked at."""
    told: list[str] = []
    with (
        BrokerProcess(tmp_path / "d") as broker,
        sync.connect(f"127.0.0.1:{broker.port}", on_event=lambda event: told.append(type(event).__name__)) as client,
    ):
        for by_pull in (True, False, True):
            client.ping()
            client.pull("t", "c", wait=0.001)
            broker.restart()
            if by_pull:
                client.pull("t", "c", wait=0.001)
            else:
                client.pub("t", b"x")
        client.ping()
        client.pull("t", "c", wait=0.001)
    assert told == ["Connected", *["Disconnected", "Connected"] * 3]
    assert sum(record.levelname == "WARNING" for record in caplog.records) == 3


def test_what_is_no_payload_and_no_duration_is_named_with_its_remedy(client: Client) -> None:
    with pytest.raises(TypeError, match=r"a payload is bytes, not str: use payload.encode\(\)"):
        client.pub("t", "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a payload is bytes, not dict: use pub_value\(…, codec=.json.\), or json.dumps"):
        client.pub("t", {"id": 17})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="delay is a number of seconds or a text with a unit, not b'5s': delay=5 is"):
        client.pub("t", b"", delay=b"5s")  # type: ignore[arg-type]


def test_settings_are_copied_from_config_and_described_in_milliseconds(client: Client) -> None:
    client.create("from", {"visibility": 60, "retain_max_age": "1d", "dedupe_keys": 7})
    assert client.describe("from")["settings"]["visibility"] == 60_000, "the units of the wire, as its docstring says"
    client.create("to", client.config("from"))
    assert client.describe("to")["settings"] == client.describe("from")["settings"]
    for method in (client.describe, client.create, client.config):
        assert "milliseconds" in (method.__doc__ or "")


@pytest.mark.parametrize("count", [0, 1, 256, 1000])
def test_what_pub_many_got_before_a_wrong_item_is_published_and_has_its_receipts(client: Client, count: int) -> None:
    """The blocking form of the test of this name in asyncio_client/test_publishing.py."""

    def items(wrong: object) -> Iterator[bytes]:
        for n in range(count):
            yield b"%d" % n
        if isinstance(wrong, Exception):
            raise wrong
        yield wrong  # type: ignore[misc]

    wrong_items: tuple[tuple[object, type[Exception]], ...] = (
        ("a text", TypeError), ((b"two words", b""), BadArgument), (ZeroDivisionError("of the iterable"), ZeroDivisionError),
    )  # fmt: skip
    for number, (wrong, error) in enumerate(wrong_items):
        receipts: list[Receipt] = []
        with pytest.raises(error):
            receipts.extend(client.pub_many(f"before.{count}", items(wrong)))
        assert [receipt.msg_id for receipt in receipts] == list(range(number * count, (number + 1) * count)), wrong


@pytest.mark.parametrize("give_up", [True, False])
def test_what_is_said_of_a_message_after_the_client_closed_is_an_error(broker: BrokerProcess, give_up: bool) -> None:
    """Found by a trial: ``ack()`` and ``nack()`` were silent, and the message came again."""
    client = sync.connect(f"127.0.0.1:{broker.port}")
    client.pub("late", b"x")
    subscription = client.sub("late", f"c{give_up}", auto_ack=True)
    message = subscription.next(5)
    client.close()
    said = [message.nack, lambda: message.nack(5, reason="no")] if give_up else [message.ack, lambda: message.ack(sync=True)]
    for say in said:
        with pytest.raises(ClientClosed):
            say()
    with pytest.raises(ClientClosed), message.process():
        pass
    with pytest.raises(ClientClosed), subscription:
        pass  # auto_ack would ack the last one here
    with pytest.raises(ZeroDivisionError), message.process():
        raise ZeroDivisionError("the handler's own error goes on")
    assert not message.extend()


def test_a_value_goes_and_comes_as_json(client: Client) -> None:
    client.pub_json("values", {"id": 17}, key="a", headers={"colour": "red"}, ttl=60)
    client.pub_value("coded", {"id": 18}, delay="0s")
    assert len(list(client.pub_many("coded", values([b"x", 2.5])))) == 2
    assert [message.value() for message in client.pull("coded", "c", 3)] == [{"id": 18}, "eA==", 2.5]
    (message,) = client.pull("values", "c")
    assert (message.json(), message.key) == ({"id": 17}, b"a")
    assert message.headers == {"content-type": "application/json", "colour": "red"}
