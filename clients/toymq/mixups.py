"""Errors for mixing up the two clients: ``with``, ``for`` or ``await`` on an object of the other one raises a TypeError with
the remedy.

These methods are hidden from type checkers, which report such mistakes themselves.
"""

from typing import TYPE_CHECKING, NoReturn


def _not_blocking(statement: str, what: str) -> TypeError:
    return TypeError(f"{what} is for asyncio and needs `async {statement}`; toymq.sync has the blocking client")


def _not_asyncio(word: str, what: str) -> TypeError:
    return TypeError(f"{what} is for blocking code: leave out `{word}`; `import toymq` has the asyncio client")


class AsyncWith:
    """Base of objects that need ``async with``."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise _not_blocking("with", self._called)

        def __exit__(self, *_: object) -> None:
            pass  # never called; without it Python's own error comes first


class AsyncFor:
    """Base of objects that need ``async for``."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __iter__(self) -> NoReturn:
            raise _not_blocking("for", self._called)


class PlainAwait:
    """Base of results of the blocking client, which must not be awaited."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __await__(self) -> NoReturn:
            raise _not_asyncio("await", self._called)


class PlainWith(PlainAwait):
    """Base of the blocking client's context managers, with which ``async with`` raises an error that says what to write."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __aenter__(self) -> NoReturn:
            raise _not_asyncio("async", self._called)

        def __aexit__(self, *_: object) -> None:
            pass  # as ``__exit__`` above


class PlainFor:
    """Base of the blocking client's iterators, with which ``async for`` raises an error that says what to write."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __aiter__(self) -> NoReturn:
            raise _not_asyncio("async", self._called)
