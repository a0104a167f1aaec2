"""Turns a handler's exception into the texts that NACK carries to the dead letter.

Contract: protocol.md, NACK; ADR 0062. Both clients use it.
"""

from traceback import format_exception, format_tb

from toymq import arguments
from toymq_py.failure import FAILURE_BYTES_MAX, Failure, cut, failure_of
from toymq_py.names import is_dead_letters
from toymq_py.protocol import HelloReply

FRAMES_MAX = 20
"""The innermost frames of a traceback; a recursion has thousands."""
OLD_REASON_BYTES_MAX = 256
Reason = str | BaseException | None
DeadOn = type[Exception] | tuple[type[Exception], ...]
"""The classes of exceptions, as in ``except``."""


class FromProcess(Exception):
    """Set as the ``__cause__`` of an exception that a job raised in another process: carries its text and traceback from
    there."""

    def __init__(self, text: str, traceback: str) -> None:
        super().__init__(f"in a process of its own\n{traceback}")
        self.text, self.traceback = text, traceback


def describe(
    reason: Reason, error: BaseException | None, server: HelloReply | None, *, details: bool
) -> Failure | None:
    """Convert a reason and an exception to the failure that NACK carries. An exception whose ``str`` raises is described by its
    type alone.

    Args:
        reason: a text, or an exception in place of ``error``.
        server: the broker's greeting, which tells its version; for an older broker the whole failure becomes one reason text.
        details: add the exception's text and traceback, without variables.

    Raises: TypeError.
    """
    reason, error = arguments.why(reason, error)
    failure = failure_of(reason) if error is None else failure_of(reason, _name(error), *(_details(error) if details else ()))
    if failure is None or server is None or server.tells_errors:
        return failure
    line = failure.reason or ": ".join(text for text in (failure.error_type, failure.error) if text is not None)
    return Failure(cut(line, OLD_REASON_BYTES_MAX))


def is_dead(error: Exception, dead_on: DeadOn, topic: str) -> bool:
    """Whether an exception sends the message to the dead letters at once. Never for a message of a dead-letter topic, which has
    no dead letters of its own."""
    return isinstance(error, dead_on) and not is_dead_letters(topic)


def _name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"


def encodable(text: str) -> str:
    """Escape the lone surrogates in a text, which UTF-8 cannot encode. File names and JSON bring them into exceptions."""
    return text.encode("utf-8", "backslashreplace").decode()


def text_of(error: BaseException) -> str:
    """The text of an exception, made encodable as UTF-8; "" when its ``str`` raises."""
    if isinstance(error.__cause__, FromProcess):
        return error.__cause__.text
    try:
        return encodable(str(error))
    except Exception:  # noqa: BLE001 (a handler's own class)
        return ""


def traceback_of(error: BaseException) -> str:
    """The traceback and text of an exception and of its causes, as a log would show them, made encodable as UTF-8. Of a long
    one, the beginning and the end are kept."""
    text = "".join(format_exception(error)).rstrip("\n")
    left_out = len(text) - 2 * FAILURE_BYTES_MAX
    if left_out > 0:
        text = f"{text[:FAILURE_BYTES_MAX]}\n... {left_out} characters left out ...\n{text[-FAILURE_BYTES_MAX:]}"
    return encodable(text)


def _details(error: BaseException) -> tuple[str, str | None]:
    """The text and the traceback of an exception."""
    text = text_of(error)
    if isinstance(error.__cause__, FromProcess):
        return text, error.__cause__.traceback
    if error.__traceback__ is None:
        return text, None
    return text, "".join(["Traceback (most recent call last):\n", *format_tb(error.__traceback__, -FRAMES_MAX)])
