"""Lease renewal of a blocking client while its thread is in a handler: ``sub(auto_extend=True)``.

The keeper has its own thread, event loop and connection. The client's connection belongs to the thread that calls the client,
which may be in the middle of a frame; and a lease may be renewed from any connection (protocol.md, TOUCH). The keeper only
reads the feeds.

Deliveries that wait unread in the client's socket are renewed by their lease number: each TOUCH names all ids, and the broker
renews only this subscription's leases.
"""

import asyncio
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace

from toymq.delivery_window import Feed
from toymq.link import Link
from toymq.options import GOODBYE_S, Options
from toymq.outages import Outages
from toymq.renewal import Renewal
from toymq.url import Address
from toymq_py.errors import ConfigError, ToymqError


class _Unreported(Outages):
    """An ``Outages`` that reports nothing: the client itself reports an outage when its own connection finds it, in its own
    thread."""

    def up(self, link: object, address: Address) -> None:
        pass

    def down(self, link: object, address: Address, reason: ToymqError) -> None:
        pass


class LeaseKeeper:
    """Renews the leases of one client's subscriptions. Its thread ends with ``stop``; only the public methods run in other
    threads."""

    def __init__(self, options: Options) -> None:
        """Open no thread or descriptor yet: ``open`` does, once the owner has this object and can close it even if a signal
        handler's exception interrupts."""
        self._options = replace(options, wait_s=options.timeout_s)
        self._renewals: dict[Feed, Renewal] = {}
        self._link: Link | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._leaving = False
        self._forked = False
        self._opened: Future[None] = Future()
        # A daemon: a program that exits has no leases to renew.
        self._thread = threading.Thread(target=self._run, name="toymq-leases", daemon=True)
        _keepers.add(self)

    def open(self) -> None:
        """Start the thread and connect; retry for as long as a request may take while no broker answers. Called once.

        Raises: ConfigError (no thread can be started), ConnectFailed, RequestError, ProtocolViolation.
        """
        try:
            self._start()
            self._opened.result()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:
            raise ConfigError(f"auto_extend needs a thread, which cannot be started: {error}") from error
        except KeyError as error:  # what `Thread.start` makes of an exception of a signal handler, once the thread runs
            raise error.__context__ or error from None

    @property
    def ended(self) -> bool:
        """Whether the keeper was stopped, was never opened, or was refused by the broker."""
        return self._leaving or not self._opened.done() or self._link is None or self._link.conversation.is_closed

    def keep(self, feed: Feed, visibility_s: float) -> None:
        """Renew a feed's leases from now on, for ``visibility_s`` each."""
        self._call(lambda: self._begin(feed, visibility_s))

    def leave(self, feed: Feed) -> None:
        """Stop renewing a feed's leases. Idempotent."""
        self._call(lambda: self._end(feed))

    def stop(self) -> None:
        """Ask the thread to end. Idempotent; without effect in the child of a fork."""
        self._leaving = True  # where the thread has no event loop yet
        self._call(self._leave)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end after ``stop``, at most ``timeout_s``."""
        if threading.current_thread() is not self._thread:  # where an unclosed client may be garbage-collected
            with suppress(RuntimeError):  # it has not begun
                self._thread.join(max(timeout_s, 0.0))

    def close(self) -> None:
        """Call ``stop`` and ``join``."""
        self.stop()
        self.join(GOODBYE_S)

    def leave_to_parent(self) -> None:
        """In the child of a fork, which has no such thread, close the copy of the connection, so that it does not outlive the
        parent.

        The descriptor then refers to the null device, so that the object that owns it may close it again.
        """
        self._forked = True
        descriptor = self._link.descriptor if self._link is not None else None
        if descriptor is not None:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, descriptor, inheritable=False)
            os.close(nothing)

    def _call(self, what: Callable[[], object]) -> None:
        loop = self._loop
        if loop is not None and not self._forked:
            with suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(what)

    # -- in the thread

    def _run(self) -> None:
        try:  # with a factory, the runner sets no loop of this thread
            with asyncio.Runner(loop_factory=self._new_loop) as runner, suppress(asyncio.CancelledError):  # stopped as it left
                runner.run(self._keep())
        except OSError as error:
            if self._opened.done():
                raise
            self._opened.set_exception(error)  # no descriptors for an event loop

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.new_event_loop()
        return self._loop

    def _leave(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _keep(self) -> None:
        self._task = asyncio.current_task()
        self._link = link = Link(self._options, _Unreported(self._options))
        try:
            if not self._leaving:
                await link.open()
                self._opened.set_result(None)
                await asyncio.get_running_loop().create_future()  # until stop
        except asyncio.CancelledError:
            pass
        except Exception as error:  # noqa: BLE001 (raised where it was asked for)
            self._opened.set_exception(error)
        finally:
            for feed in list(self._renewals):
                self._end(feed)
            await link.close()

    def _begin(self, feed: Feed, visibility_s: float) -> None:
        assert self._link is not None, "keep() is called after the connection is open"
        if not self._leaving:
            conversation = self._link.conversation
            renewal = Renewal(feed, lambda: conversation, visibility_s, asyncio.get_running_loop(), with_unread=True)
            self._renewals[feed] = renewal
            renewal.start()

    def _end(self, feed: Feed) -> None:
        renewal = self._renewals.pop(feed, None)
        if renewal is not None:
            renewal.stop()


# -- after a fork

_keepers: "weakref.WeakSet[LeaseKeeper]" = weakref.WeakSet()


def _leave_to_parent() -> None:
    for keeper in list(_keepers):
        keeper.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
