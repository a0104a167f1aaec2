"""Arguments of the clients' methods: each argument of each public method of both, with invalid values."""

import asyncio
import inspect
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner

import toymq
from tests.support.obliging_broker import ObligingBroker
from toymq import arguments, connect, sync
from toymq.arguments import key_bytes, payload_bytes, route_bytes, to_ms
from toymq.message import Outgoing, Sequenced, chunks, format_headers
from toymq_py.errors import BadArgument, BadName, ConfigError, ToymqError
from toymq_py.protocol import Nack, Offsets
from toymqctl.broker import Broker
from toymqctl.cli import main as toymqctl

URL = "unix:/in/memory"
VALUES = (None, 5, b"x", "", "a b", [], object(), math.nan, -1, 0, 10**30)
CLIENT: dict[str, dict[str, Any]] = {
    "pub": {"topic": "t", "payload": b"x", "key": "k"},
    "pub_json": {"topic": "t", "value": 1, "key": "k"},
    "pub_value": {"topic": "t", "value": 1, "key": "k"},
    "pub_many": {"topic": "t", "items": [b"x"]},
    "sub": {"topic": "t", "consumer": "c"},
    "pull": {"topic": "t", "consumer": "c"},
    "ack": {"topic": "t", "consumer": "c", "ids": [(7, 7)]},
    "nack": {"topic": "t", "consumer": "c", "ids": [(7, 7)]},
    "fetch": {"topic": "t", "from_id": 0, "max_count": 1},
    "offsets": {"topic": "t"},
    "topic_range": {"topic": "t"},
    "topics": {},
    "describe": {"topic": "t"},
    "stats": {},
    "ping": {},
    "create": {"topic": "t"},
    "config": {"topic": "t"},
    "delete": {"topic": "t"},
    "purge": {"topic": "t"},
    "seek": {"topic": "t", "consumer": "c", "to": "latest"},
    "forget": {"topic": "t", "consumer": "c"},
    "redrive": {"topic": "t.dlq"},
    "drain": {"timeout": 1},
    "open": {},
}
MESSAGE: dict[str, dict[str, Any]] = {
    "ack": {}, "nack": {}, "dead_letter": {}, "extend": {}, "process": {}, "json": {}, "value": {},
}  # fmt: skip
SUBSCRIPTION: dict[str, dict[str, Any]] = {"next": {}, "batches": {"max": 1, "wait": 0}}
LAST = {"close": {}, "drain": {"timeout": 1}}
"""Of a subscription; each has one of its own."""
NOT_OURS = "has no attribute|object is not|unsupported operand|NoneType|not subscriptable|must be str|expected str|cannot be"
ROWS = [
    (kind, method, base)
    for kind, table in (("Client", CLIENT), ("Message", MESSAGE), ("Subscription", SUBSCRIPTION))
    for method, base in table.items()
]


def wrong(method: Callable[..., object], base: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield arguments of which one may be invalid, and its name."""
    names = [name for name in inspect.signature(method).parameters if name != "self"]
    assert base.keys() <= set(names)
    for name in names:
        for value in VALUES:
            yield name, {**base, name: value}


def check(method: str, name: str, said: dict[str, Any], error: Exception) -> None:
    """Check that an error is of use to the author of the call."""
    call = f"{method}({said}): {type(error).__name__}: {error}"
    if isinstance(error, toymq.RequestTimeout) and method == "next":
        return
    assert isinstance(error, TypeError | BadArgument | BadName | ConfigError), call
    words = {"headers": "headers?", "urls": "urls|URL", "items": "items|payload"}.get(name, name)
    assert re.search(rf"\b({words})\b", str(error)), call
    assert not re.search(NOT_OURS, str(error)), call


def test_the_tables_have_all_public_methods() -> None:
    for module in (toymq, sync):
        for kind, tables in (("Client", (CLIENT,)), ("Message", (MESSAGE,)), ("Subscription", (SUBSCRIPTION, LAST))):
            public = {name for name, _ in inspect.getmembers(getattr(module, kind), inspect.isfunction) if name[0] != "_"}
            known = {name for table in tables for name in table} | {"close"}
            assert public <= known, (module, kind)
            assert known - public <= {"drain", "close"}, (module, kind)


@pytest.mark.parametrize(("kind", "method", "base"), ROWS, ids=[f"{kind}.{method}" for kind, method, _ in ROWS])
def test_a_wrong_argument_is_named_and_harms_nothing(
    broker: ObligingBroker, kind: str, method: str, base: dict[str, Any]
) -> None:
    with sync.connect(URL, timeout_s=10) as mq:
        messages = mq.sub("books", "c") if kind != "Client" else None
        target: Any = mq
        if messages is not None:
            target = messages if kind == "Subscription" else messages.next(timeout=5)
        for name, said in wrong(getattr(getattr(sync, kind), method), base):
            try:
                found = getattr(target, method)(**said)
                if method == "process":
                    with found:
                        pass
                elif method == "batches":
                    next(found)
                elif method == "pub_many":
                    list(found)
                elif method == "sub":
                    found.close()
            except Exception as error:  # noqa: BLE001 (looked at)
                check(method, name, said, error)
            mq.ping()
        if messages is not None:
            messages.close()


async def use(target: Any, method: str, said: dict[str, Any]) -> None:
    found = getattr(target, method)(**said)
    if method == "process":
        async with found:
            return
    if method == "batches":
        await anext(found)
        await found.aclose()
    elif method == "sub":
        async with found:
            return
    elif method != "value":
        assert isinstance(found, Awaitable)
        await found


@pytest.mark.parametrize(("kind", "method", "base"), ROWS, ids=[f"{kind}.{method}" for kind, method, _ in ROWS])
async def test_the_same_with_asyncio(broker: ObligingBroker, kind: str, method: str, base: dict[str, Any]) -> None:
    async with toymq.connect(URL, timeout_s=10) as mq:
        messages = await mq.sub("books", "c") if kind != "Client" else None
        target: Any = mq
        if messages is not None:
            target = messages if kind == "Subscription" else await messages.next(timeout=5)
        for name, said in wrong(getattr(getattr(toymq, kind), method), base):
            try:
                await use(target, method, said)
            except Exception as error:  # noqa: BLE001 (looked at)
                check(method, name, said, error)
            await mq.ping()
        if messages is not None:
            await messages.close()


async def test_a_subscription_that_is_drained(broker: ObligingBroker) -> None:
    async with toymq.connect(URL) as mq:
        for name, said in wrong(toymq.Subscription.drain, LAST["drain"]):
            messages = await mq.sub("books", "c")
            try:
                assert await messages.drain(**said)
            except (TypeError, ToymqError) as error:
                check("drain", name, said, error)
                await messages.close()


@pytest.mark.parametrize("connect", [toymq.connect, sync.connect], ids=["asyncio", "sync"])
async def test_a_client_that_cannot_be(broker: ObligingBroker, connect: Callable[..., Any]) -> None:
    for name, said in wrong(connect, {}):
        try:
            client = connect(**{"urls": URL, **said})
        except (TypeError, ToymqError) as error:
            check("connect", name, said, error)
        else:
            closed = client.close()
            if closed is not None:
                await closed


def test_a_url_that_is_none_says_where_to_look() -> None:
    for connect_to in (toymq.connect, sync.connect):
        with pytest.raises(TypeError, match=r"urls is .* not None: is the environment variable set"):
            connect_to(None)  # type: ignore[arg-type]
        with pytest.raises(TypeError) as caught:
            connect(b"toymq://s3cret@h")  # type: ignore[arg-type]
        assert "s3cret" not in str(caught.value)
        with pytest.raises(ConfigError, match=r"^urls\[1\]: a broker's URL is toymq://") as refused:
            connect_to(["toymq://a", "http://s3cret@b", "c"])
        assert "s3cret" not in str(refused.value)


async def later() -> AsyncIterator[bytes]:
    yield b"x"


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda mq: mq.sub("a b", "c"), BadName, "topic name must be 1 to 196 of .*; topic is 'a b'"),
        (lambda mq: mq.sub("t", ""), BadName, "consumer name must be .*; consumer is ''"),
        (lambda mq: mq.sub("t", "c mode=shared"), BadName, "consumer name must be"),
        (lambda mq: mq.sub("a*", "c"), BadName, "a wildcard is a whole word.*; topic is 'a\\*'"),
        (lambda mq: mq.sub("t", "c", window="8"), TypeError, "window is a whole number, not '8'"),
        (lambda mq: mq.sub("t", "c", window=True), TypeError, "window is a whole number, not True"),
        (lambda mq: mq.sub("t", "c", mode="both"), BadArgument, "invalid mode 'both': write exclusive, shared, keyed or"),
        (lambda mq: mq.sub("t", "c", start="soon"), BadArgument, "start: invalid position 'soon': write earliest"),
        (lambda mq: mq.sub("t", "c", start="@1795410933"), BadArgument, "start: @1795410933 is before 2001: write millisec"),
        (lambda mq: mq.seek("t", "c", "@2020"), BadArgument, "to: @2020 is before 2001: write milliseconds, @2020000, or ea"),
        (lambda mq: mq.seek("t", "c", -1), BadArgument, "to is a whole number from 0 to 18446744073709551615, not -1"),
        (lambda mq: mq.seek("t", "c", 1.5), TypeError, "to is \"earliest\", \"latest\", an id or \"@<unix-ms>\", not 1.5"),
        (lambda mq: mq.sub("t", "c", visibility=0), BadArgument, "visibility is .* seconds, from 0.001 to ten years, not 0"),
        (lambda mq: mq.pub("t", b"x", ttl=0), BadArgument, "ttl is a duration in seconds, from 0.001 to ten years, not 0"),
        (lambda mq: mq.pub("t", b"x", delay=5, ttl=5), BadArgument, "a delay of 5s with a ttl of 5s: it would expire before"),
        (lambda mq: mq.pub_many("t", [b"x"], delay="2m", ttl=90), BadArgument, "a delay of 2m with a ttl of 90s: it would ex"),
        (lambda mq: list(mq.pub_many("t", [Sequenced("p", 1, b"", 0, 9, 9)])), BadArgument, "a delay of 9ms with a ttl of 9ms"),
        (lambda mq: mq.pub("t", b"x", key="k", seq="5"), TypeError, "seq is a whole number, not '5'"),
        (lambda mq: mq.pub(b"t", b"x"), TypeError, "topic is a str, not b't': use topic.decode()"),
        (lambda mq: mq.pub("t", b"x", headers=["a"]), TypeError, r"headers is a dict of str to str, not \['a'\]"),
        (lambda mq: mq.pub_many("t", b"x"), TypeError, r"items is an iterable .*, not b'x': use \[b'x'\]"),
        (lambda mq: list(mq.pub_many("t", [(b"k", b"x", 1)])), TypeError, "headers is a dict of str to str, not 1"),
        (lambda mq: list(mq.pub_many("t", [(b"k",)])), TypeError, r"an item of pub_many is a payload, .*, not \(b'k',\)"),
        (lambda mq: mq.pub_many("t", later()), TypeError, "items .*: publish each with pub, or collect them in a list"),
        (lambda mq: mq.pull("t", "c", wait="5"), BadArgument, "wait needs a unit: write 5s or 5ms, not '5'"),
        (lambda mq: mq.pull("t", "c", wait=b"5s"), TypeError, "wait is a number of seconds or a text with a unit, not b'5s'"),
        (lambda mq: mq.pub("t", b"x", ttl="0s"), BadArgument, "ttl is a duration in seconds, from 0.001 .* not '0s'"),
        (lambda mq: mq.ack("t", "c", [7]), TypeError, r"ids is a list of ranges \(first, last\), .*, not of 7"),
        (lambda mq: mq.ack("t", "c", [(9, 7)]), BadArgument, r"ids ascend .*; \(9, 7\) does not"),
        (lambda mq: mq.offsets("t", at_ms=1.5), TypeError, "at_ms is a whole number, not 1.5: of a datetime"),
        (lambda mq: mq.create("t", {"ttl": "60"}), BadArgument, r"settings\['ttl'\] needs a unit: write 60s or 60ms"),
        (lambda mq: mq.create("t", {"max_attempts": "a b"}), BadArgument, r"settings\['max_attempts'\] is 1 to 1024 of"),
        (lambda mq: mq.create("t", {"ttl": "soon"}), BadArgument, r"settings\['ttl'\]: invalid duration 'soon'"),
        (lambda mq: mq.create("t", {"ttl": 0}), BadArgument, r"settings\['ttl'\] is a duration in seconds, from 0.001"),
        (lambda mq: mq.create("t", {"ttl": timedelta(1)}), TypeError, "is a number of seconds or .*total_seconds"),
        (lambda mq: mq.create("t", {"max_attempts": 1.5}), TypeError, r"settings\['max_attempts'\] is a whole number, not 1.5"),
        (lambda mq: mq.create("t", {"verb": 1, "A": 2}), BadArgument, "a name in settings is a word .*, not 'A'"),
    ],
)
def test_what_is_said(
    broker: ObligingBroker, call: Callable[[sync.Client], object], kind: type[Exception], said: str
) -> None:
    with sync.connect(URL) as mq:
        with pytest.raises(kind, match=said):
            call(mq)
        assert broker.commands == []


def test_an_exception_is_a_reason(broker: ObligingBroker) -> None:
    """Found by a trial: in an ``except`` block ``dead_letter(exc)`` hid the exception behind an error of its own."""
    broken = ValueError("no such invoice")
    with sync.connect(URL) as mq:
        messages = mq.sub("t", "c")
        messages.next(5).dead_letter(broken)
        messages.next(5).nack(reason=broken)
        mq.nack("t", "c", [(7, 7)], reason=broken)
        with pytest.raises(TypeError, match=r"reason is a str, or an exception .*, not b'x': use reason.decode()"):
            messages.next(5).dead_letter(b"x")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="error is an exception, not 'x': say a text as reason"):
            messages.next(5).nack(error="x")  # type: ignore[arg-type]
    told = [command.failure for command in broker.commands if isinstance(command, Nack) and command.failure]
    assert [(each.reason, each.error_type, each.error) for each in told] == [(None, "ValueError", "no such invoice")] * 3


class _Exit(BaseException): ...


@pytest.mark.parametrize("wrong", [int, ValueError("x"), [ValueError], None, asyncio.CancelledError, SystemExit, _Exit])
def test_what_no_failure_can_match_is_refused_as_dead_on(wrong: object) -> None:
    """A message is given back when its handler raises what is no Exception, so such a class in ``dead_on`` never matched.
    Found: nothing said so."""
    for value in (wrong, (ValueError, wrong)):
        with pytest.raises(TypeError, match=r"^dead_on is (an exception's class|for subclasses of Exception)"):
            arguments.exceptions("dead_on", value)


def test_each_class_that_a_failure_can_match_is_taken_as_dead_on() -> None:
    for value in ((), ValueError, (KeyError, OSError), Exception, BaseException, ExceptionGroup, BaseExceptionGroup):
        arguments.exceptions("dead_on", value)


class _Awaited:
    async def __call__(self, *_: object) -> None: ...


def test_what_is_called_and_not_awaited_is_no_coroutine_function() -> None:
    """Found: an object whose ``__call__`` is a coroutine function was accepted, and its calls did nothing."""
    for value in (_Awaited(), _Awaited().__call__, partial(_Awaited().__call__, 1)):
        with pytest.raises(TypeError, match="on_event is called and not awaited: write `def`, not `async def`"):
            connect(URL, on_event=value)
    with pytest.raises(TypeError, match=r"^encode is a function, not None"):
        arguments.function("encode", None, optional=False)
    for taken in (None, print, partial(print), int):
        arguments.function("on_event", taken)


def test_a_mistake_in_process_is_said_before_the_handler_runs(broker: ObligingBroker) -> None:
    """An error raised after the handler would hide the handler's own exception."""
    with sync.connect(URL) as mq:
        message = mq.sub("t", "c").next(5)
        for wrong_one, said in (
            ({"dead_on": "x"}, "dead_on is"), ({"dead_on": GeneratorExit}, "dead_on is for"),
            ({"retry_delay": b"5s"}, "retry_delay is"),
        ):  # fmt: skip
            with pytest.raises(TypeError, match=said), message.process(**wrong_one):  # type: ignore[arg-type]
                pytest.fail("the handler ran")


def test_a_name_may_be_a_member_of_an_enum(broker: ObligingBroker) -> None:
    class Topic(str, Enum):  # noqa: UP042 (what programs have; str() of it is another text)
        ORDERS = "orders"

    with sync.connect(URL) as mq:
        mq.offsets(Topic.ORDERS)
        mq.pub(Topic.ORDERS, b"x")
    assert broker.commands[0] == Offsets("orders")


class _Nameless:
    def __repr__(self) -> str:
        raise RuntimeError


def test_a_value_is_shown_whatever_it_is() -> None:
    assert arguments.shown(_Nameless()) == "a _Nameless" or arguments.shown(_Nameless()).startswith("<_Nameless")
    assert len(arguments.shown("x" * 10**6)) <= 102
    assert arguments.shown(10**5000)


COMMANDS = (
    ("pub", "T", "x"), ("sub", "T"), ("sub", "t", "--consumer", "T"), ("pull", "T", "c"), ("pull", "t", "T"), ("tail", "T"),
    ("topics", "T"), ("describe", "T"), ("consumers", "T"), ("create", "T"), ("config", "T"), ("delete", "T", "--yes"),
    ("purge", "T", "--yes"), ("seek", "T", "c", "latest"), ("seek", "t", "T", "latest"),
    ("forget", "T", "c"), ("forget", "t", "T"), ("ack", "T", "c", "7"), ("nack", "t", "T", "7"), ("dlq", "list", "T"),
    ("dlq", "redrive", "T", "7"),
)  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("name", ["", "a b", "ü", "a mode=shared"])
def test_toymqctl_says_what_a_name_is(
    broker: ObligingBroker, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], name: str
) -> None:
    monkeypatch.setattr(Broker, "connect", lambda _, **more: sync.connect(URL))
    result = CliRunner().invoke(toymqctl, [name if word == "T" else word for word in words])
    assert result.exit_code == 1
    said = r"toymqctl: BAD_NAME: (topic|consumer) name must be .*; (topic|consumer|pattern) is '"
    assert re.match(said, result.stderr), result.stderr


DICT_REMEDY = 'a payload is bytes, not dict: use pub_value(…, codec="json"), or json.dumps(payload).encode()'


def fail(items: list[Outgoing], error: Exception | None) -> None:
    assert items == []
    assert error is not None
    raise error


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: payload_bytes("text"), "a payload is bytes, not str: use payload.encode()"),
        (lambda: payload_bytes({"id": 17}), DICT_REMEDY),
        (lambda: payload_bytes(None), 'a payload is bytes, not None: use b"" for an empty one'),
        (
            lambda: fail(*next(chunks(["text"], 8, 100, format_headers, False, None, None))),  # type: ignore[list-item]
            "a payload is bytes, not str: use payload.encode()",
        ),
        (
            lambda: to_ms("delay", b"5s"),  # type: ignore[arg-type]
            "delay is a number of seconds or a text with a unit, not b'5s': delay=5 is five seconds",
        ),
        (
            lambda: to_ms("ttl", timedelta(seconds=5)),  # type: ignore[arg-type]
            "ttl is a number of seconds or a text with a unit, not datetime.timedelta(seconds=5): use ttl.total_seconds()",
        ),
        (lambda: key_bytes(17), "a key is str or bytes, not int: use str(key)"),  # type: ignore[arg-type]
        (lambda: format_headers({"n": 1}), "a header's name and value are str, not 'n': 1; use str()"),  # type: ignore[dict-item]
        (
            lambda: connect(timeout_s=[]),  # type: ignore[arg-type]
            "timeout_s is a number of seconds or a text with a unit, not []: timeout_s=5 is five seconds",
        ),
        (
            lambda: sync.connect(wait_s={}),  # type: ignore[arg-type]
            "wait_s is a number of seconds or a text with a unit, not {}: wait_s=5 is five seconds",
        ),
    ],
    ids=["str", "dict", "None", "one of many", "delay", "timedelta", "key", "header", "timeout_s", "wait_s"],
)
def test_a_mistake_is_named_with_its_remedy(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value) == said


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: key_bytes("a b"), "invalid key 'a b': write 1 to 512 printable ASCII characters without space; the"),
        (lambda: key_bytes("-"), "invalid key '-': write .*; the key \"-\" alone is reserved; leave the key out"),
        (lambda: key_bytes(b"\xff"), "invalid key '.xff'|invalid key b'.xff'"),
        (lambda: key_bytes("k" * 513), "invalid key 'kkk"),
        (lambda: key_bytes("caf\udce9"), r"invalid key 'caf.udce9'"),  # it was `caf?`, as was every other such name
        (lambda: route_bytes("caf\udce9"), r"invalid route 'caf.udce9'"),
        (lambda: format_headers({"ok": "1", "a:b": "c"}), "invalid header 'a:b': 'c': a name has no colon"),
        (lambda: format_headers({"a": "b\nc"}), r"invalid header 'a': 'b\\nc': a name .* line break"),
    ],
)
def test_a_wrong_key_or_header_is_shown(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(BadArgument, match=said):
        call()


def test_what_holds_bytes_is_a_payload() -> None:
    assert [payload_bytes(payload) for payload in (b"a", bytearray(b"a"), memoryview(b"a"))] == [b"a"] * 3
