"""A job: the arguments of a function as a message, and a message as arguments."""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import toymq
from toymq import App, Message
from toymq.delivery_window import Feed
from toymq_py.errors import BadArgument, ConfigError
from toymq_py.protocol import MessagePush, Subscribe


@dataclass
class Size:
    width: int
    height: int = 3


app = App("toymq://127.0.0.1:1")


@app.worker("resize")
async def resize(path: str, size: Size, *, quality: int = 80) -> str:
    """Resizes."""
    return f"{path} {size.width} {quality}"


@app.worker("raw")
def raw(message: Message) -> bytes:
    return message.payload


@app.worker("both")
def both(name: str, message: Message) -> None:
    """Takes an argument and the message."""


@app.worker("nothing")
def nothing() -> None:
    """Takes no arguments."""


def message_of(payload: bytes) -> Message:
    push = MessagePush("resize", 1, 1, 5, b"", b"", payload)
    return Message(push, Feed(Subscribe("t", "c"), print), None)  # type: ignore[arg-type]


def test_the_payload_is_an_object_of_the_arguments_by_name() -> None:
    assert json.loads(resize.payload("a.png", Size(1))) == {"path": "a.png", "size": {"width": 1, "height": 3}}
    assert resize.payload("ä", size=Size(1, 2), quality=3) == (
        '{"path":"ä","size":{"width":1,"height":2},"quality":3}'.encode()
    )
    assert nothing.payload() == b"{}"
    assert both.payload("x") == b'{"name":"x"}'  # type: ignore[call-arg]


def test_a_message_gives_the_arguments_back() -> None:
    assert resize.arguments_of(message_of(resize.payload("a.png", Size(1, 2), quality=3))) == {
        "path": "a.png", "size": Size(1, 2), "quality": 3,
    }  # fmt: skip
    assert nothing.arguments_of(message_of(b"")) == nothing.arguments_of(message_of(b"{}")) == {}


def test_a_parameter_of_the_type_message_is_the_message() -> None:
    message = message_of(b"\xff")
    assert raw.arguments_of(message) == {"message": message}
    message = message_of(b'{"name": "x"}')
    assert both.arguments_of(message) == {"name": "x", "message": message}
    with pytest.raises(TypeError, match="takes the message itself: publish any payload to raw"):
        raw.payload()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", "the payload is not JSON"),
        (b"[]", "a job is a JSON object of arguments by name, not []"),
        (b'{"path": "a"}', "the job has no size, which"),
        (b'{"path": "a", "size": {"width": 1}, "depth": 1}', "the job has 'depth', which"),
        (b'{"path": 1, "size": {"width": 1}}', "resize is a text, not 1"),
    ],
)
def test_a_message_that_does_not_fit_is_refused(payload: bytes, text: str) -> None:
    with pytest.raises(BadArgument) as refused:
        resize.arguments_of(message_of(payload))
    assert text in str(refused.value)


def test_a_call_that_the_function_does_not_take_is_refused() -> None:
    with pytest.raises(TypeError, match="resize: missing a required argument: 'size'"):
        resize.payload("a.png")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="resize is of type object, which JSON does not have"):
        resize.payload(object(), Size(1))  # type: ignore[arg-type]


def test_an_argument_of_a_wrong_type_is_not_published() -> None:
    """Found by a trial: the job was published, and became a dead letter at the worker."""
    for wrong, text in (
        (("a.png", "large"), "argument size of .*resize is an object with the fields of Size, not 'large'"),
        ((17, Size(1)), "argument path of .*resize is a text, not 17"),
        (("a.png", Size("1")), "argument size of .*resize.width is a whole number, not '1'"),  # type: ignore[arg-type]
        ((b"cat", Size(1)), "argument path of .*resize is a text, not b'cat': decode the bytes"),
    ):
        with pytest.raises(TypeError, match=text):
            resize.payload(*wrong)  # type: ignore[arg-type]


def test_a_name_of_a_file_that_is_no_unicode_arrives() -> None:
    assert resize.arguments_of(message_of(resize.payload("\udcff.png", Size(1))))["path"] == "\udcff.png"


async def test_calling_a_job_calls_the_function() -> None:
    assert await resize("a", Size(5)) == "a 5 80"
    assert (resize.__name__, resize.__doc__, resize.topic) == ("resize", "Resizes.", "resize")


def test_options_make_another_job_and_leave_the_first() -> None:
    later = resize.options(delay="5m", key="a")
    assert later.payload("a", Size(1)) == resize.payload("a", Size(1))
    assert later._options != resize._options


@app.worker("book", mode="keyed")
async def book(number: int) -> None:
    """Takes one job of a group at a time."""


def test_a_group_is_the_header_that_mode_keyed_orders_by() -> None:
    assert book.options(group="ann", headers={"a": "b"})._options.headers == {"a": "b", "toymq-group": "ann"}


def test_a_key_on_a_keyed_job_is_warned_of_once_as_the_topic_drops_the_next_jobs(caplog: pytest.LogCaptureFixture) -> None:
    for options in ({"group": "ann"}, {"headers": {"toymq-group": "ann"}}):
        book.options(key="1", **options)  # type: ignore[arg-type]  # an idempotent job of a group
    resize.options(key="ann")
    assert caplog.messages == []
    for _ in range(3):
        book.options(key="ann").options(key="ann")
    (said,) = caplog.messages
    assert "key='ann': the topic stores one job for each key and drops the next ones" in said
    assert "options(group=…)" in said


async def test_send_needs_a_connection() -> None:
    with pytest.raises(toymq.ClientClosed, match="publish within `async with` it, or in a worker"):
        await resize.send("a", Size(1))


def test_parameters_without_a_name_or_a_type_that_json_has_are_refused_at_once() -> None:
    def several(*paths: str) -> None: ...

    def any_more(**rest: str) -> None: ...

    def strange(number: complex) -> None: ...

    def unknown(size: "Nowhere") -> None: ...  # type: ignore[name-defined] # noqa: F821

    fresh: Any = App("toymq://127.0.0.1:1")
    for function, text in (
        (several, "its parameter \\*paths: str has no name of its own"),
        (any_more, "its parameter \\*\\*rest: str has no name of its own"),
        (strange, "parameter number of .*: no complex is made from JSON"),
        (unknown, "the annotations of .* cannot be read: name 'Nowhere' is not defined"),
    ):
        with pytest.raises(TypeError, match=text):
            fresh.worker("t")(function)


def test_a_thread_has_no_timeout() -> None:
    with pytest.raises(ConfigError, match="a function that runs in a thread cannot be stopped; write `async def`"):
        App().worker("t", timeout="5s")(lambda: None)


def test_a_process_calls_plain_functions_that_it_can_import() -> None:
    async def coroutine() -> None: ...

    def inner() -> None: ...

    for function in (inner, lambda: None):
        with pytest.raises(ConfigError, match="another process cannot import it: define it with `def` in a module"):
            app.worker("t", executor="process")(function)
    with pytest.raises(ConfigError, match="a process calls a plain function: write `def`"):
        app.worker("t", executor="process")(coroutine)
    with pytest.raises(BadArgument, match="invalid executor 'fork': write thread or process"):
        app.worker("t", executor="fork")  # type: ignore[arg-type]
    assert app.worker("timed", executor="process", timeout="1s")(message_of).settings.timeout_s == 1  # a module's function


def test_a_function_that_would_do_nothing_when_it_is_called_is_refused() -> None:
    """Calling a generator function does not run its body, so its jobs would be acked undone."""

    def generates() -> Iterator[int]:
        yield 1

    async def generates_too() -> AsyncIterator[int]:
        yield 1

    for function in (generates, generates_too):
        with pytest.raises(TypeError, match="has a `yield`: calling it would do nothing"):
            app.worker("t")(function)


def test_what_awaits_behind_a_plain_call_is_told() -> None:
    """Found: for a decorator's plain wrapper of a coroutine function, the coroutine was dropped and the job acked."""

    def decorated() -> object:
        return resize.function("a", Size(1))

    with pytest.raises(TypeError, match=r"decorated returned coroutine and did none of its work: .* written `async def`"):
        App().worker("t")(decorated).call_plain({})


def test_functions_without_a_name_of_their_own_are_jobs_too() -> None:
    class Resizer:
        async def __call__(self, path: str) -> None: ...

    bound = App().worker("t")(partial(resize.function, size=Size(1)))
    assert (bound.is_async, bound.name) == (True, f"{__name__}.resize")
    job = App().worker("t")(Resizer())
    assert (job.is_async, job.__name__, json.loads(job.payload("a"))) == (True, "__call__", {"path": "a"})


def test_a_method_is_refused_where_it_is_decorated() -> None:
    """Otherwise ``self`` would be an argument of each job."""
    with pytest.raises(TypeError, match=r"Shop.work is a method: a job has no `self`; write a function outside of the class"):

        class Shop:
            @app.worker("t")
            def work(self, number: int) -> None: ...
