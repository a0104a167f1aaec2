"""How a function is called: time limits, and exceptions of another process."""

import asyncio
import sys
from types import ModuleType
from typing import Any, cast

import pytest

from toymq import App, Message
from toymq.delivery_window import Feed
from toymq.nack_reason import describe
from toymq.workers.calls import InLoop, InProcesses, InThreads, caller_of, exception_of
from toymq.workers.job import Unfit
from toymq.workers.job_child import raised
from toymq.workers.job_messages import Raised
from toymq_py.protocol import MessagePush, Subscribe


def message_of(payload: bytes) -> Message:
    return Message(MessagePush("t", 1, 1, 5, b"", b"", payload), Feed(Subscribe("t", "c"), print), None)  # type: ignore[arg-type]


class OneArgument(Exception):
    def __init__(self, *, of: str) -> None:
        super().__init__(f"of {of}")


class NotMade(Exception):
    def __new__(cls, *args: object, of: str) -> "NotMade":
        return cast("NotMade", super().__new__(cls, *args))

    def __init__(self, *, of: str) -> None: ...


def plain() -> None: ...


async def coroutine(number: int = 0) -> int:
    return number


async def test_each_kind_of_function_has_its_caller() -> None:
    app = App()
    assert isinstance(caller_of(app.worker("a")(coroutine)), InLoop)
    assert isinstance(caller_of(app.worker("b")(plain)), InThreads)
    assert isinstance(caller_of(app.worker("c", executor="process")(plain)), InProcesses)


async def test_a_payload_that_does_not_fit_is_told_apart_from_what_the_function_raises() -> None:
    call = InLoop(App().worker("t")(coroutine)).call
    assert await call(message_of(b'{"number":3}')) == 3
    with pytest.raises(Unfit, match=r"number of .* is a whole number"):
        call(message_of(b'{"number":"x"}'))


async def test_a_time_limit_is_told_apart_from_a_timeout_of_the_function() -> None:
    async def waits() -> None:
        await asyncio.Event().wait()

    async def fails() -> None:
        raise TimeoutError("of the database")

    app = App()
    with pytest.raises(TimeoutError, match=r"waits took longer than 0.01 s"):
        await InLoop(app.worker("t", timeout="10ms")(waits)).call(message_of(b""))
    with pytest.raises(TimeoutError, match="of the database"):
        await InLoop(app.worker("u", timeout="10s")(fails)).call(message_of(b""))


@pytest.mark.parametrize(("error", "text"), [(KeyError("x"), "'x'"), (OneArgument(of="me"), "of me"), (ValueError(), "")])
def test_an_exception_of_another_process_is_of_its_class(error: Exception, text: str) -> None:
    found = exception_of(raised(error))
    assert (type(found), found.args) == (type(error), (text,))


def test_a_class_that_makes_no_object_becomes_an_error_with_its_text() -> None:
    found = exception_of(raised(NotMade(of="x")))
    assert (type(found), str(found)) == (RuntimeError, "")


def test_a_class_that_is_not_imported_here_has_its_name_and_the_first_base_that_is() -> None:
    found = exception_of(Raised((("elsewhere", "Shop.Closed"), ("elsewhere", "Base"), ("builtins", "OSError")), "shut", ""))
    failure = describe(None, found, None, details=False)
    assert failure is not None
    assert (failure.error_type, isinstance(found, OSError)) == ("elsewhere.Shop.Closed", True)


def test_a_name_that_is_no_exception_here_is_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("shop_errors")
    module.Closed = "text"
    monkeypatch.setitem(sys.modules, "shop_errors", module)
    for kinds in ((("shop_errors", "Closed"), ("builtins", "Exception")), (("builtins", "KeyboardInterrupt"),)):
        found = exception_of(Raised(kinds, "shut", ""))
        assert isinstance(found, Exception)
        assert (type(found).__name__, str(found)) == (kinds[0][1], "shut")
