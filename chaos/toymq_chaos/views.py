"""Checks a history of a broker with ``--workers N``: one ``Checker`` for each topic.

A topic is with one worker at a time, so its history is like that of a broker whose lives end when that worker does. The view of
a topic consists of the events of the topic, the events of no topic, and the ends of its worker. Pure.

A connection may outlive the worker of a topic, if it goes to another worker, which passes commands on. In the topic's view it
is a new connection then: ``name~n`` after the n-th end of the topic's worker. A connection with a subscription at that worker
ends with it.

A command that was sent before the end of a worker and answered after it was answered by either the dead worker, if the client
read the answer late, or its successor, to which the command was passed on. Until a successor can exist it was the dead worker.
After that both are possible on a busy machine, and the checker gives the benefit of the doubt: an ack does not bind, and pulled
messages may come again. Such a pull gets a connection name of its own, ``name~n?``.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

from toymq_chaos.checker import ACK_WINDOW_NS, OF_EITHER, Checker
from toymq_chaos.history import OF_A_LIFE, Event
from toymq_chaos.verdict import Verdict
from toymq_py.names import DEAD_LETTERS, is_pattern
from toymq_py.placement import worker_of

REPLACED_NS = 100_000_000
"""A worker that was killed has no successor for longer than this: so long its supervisor waits at least."""


class Views:
    """Judges a history topic by topic: give it all events in order, then call ``verdict``. The history of a single process is
    judged as a whole."""

    def __init__(self, *, ack_window_ns: int = ACK_WINDOW_NS, keys_end_with_acks: bool = False) -> None:
        """The options are those of ``Checker``."""
        self._make: Callable[[], Checker] = lambda: Checker(
            ack_window_ns=ack_window_ns, keys_end_with_acks=keys_end_with_acks
        )  # fmt: skip
        self._before: list[Event] = []  # before the first start, which tells how many workers there are
        self._one: Checker | None = None
        self._views: dict[str, _View] = {}
        self._of_all: list[tuple[Event, int]] = []  # of no topic, or a pattern; and among how many workers: for later views
        self._workers = 0
        self._kills = 0

    @property
    def missing(self) -> str | None:
        """The missing part of this history; None when it is complete."""
        one = self._one or next((view.checker for view in self._views.values()), None)
        return (one or self._make()).missing

    def feed(self, event: Event) -> None:
        if self._one is not None:
            self._one.feed(event)
        elif self._workers or (event.op == "start" and event.workers is not None):
            self._feed_workers(event)
        elif event.op == "start":
            self._one = self._make()
            for each in (*self._before, event):
                self._one.feed(each)
        else:
            self._before.append(event)

    def _feed_workers(self, event: Event) -> None:
        if event.op == "start":
            self._workers = event.workers or 1
            before, self._before = self._before, []
            for each in before:
                self._feed_workers(each)
        self._kills += event.op == "kill"
        topic = (event.topic or "").removesuffix(DEAD_LETTERS)
        if topic and not is_pattern(topic):
            self._view(topic).take(event, self._workers)
            return
        self._of_all.append((event, self._workers))
        for view in self._views.values():
            view.take(event, self._workers)

    def _view(self, topic: str) -> "_View":
        view = self._views.get(topic)
        if view is None:
            view = self._views[topic] = _View(topic, self._make())
            for event, workers in self._of_all:
                view.take(event, workers)
        return view

    def verdict(self) -> Verdict:
        """Return the sum of all topics' counts and violations; a kill counts once."""
        if self._one is not None:
            return self._one.verdict()
        total = Verdict()
        for view in self._views.values():
            total.add(view.checker.verdict())
        total.kills = self._kills
        return total


class _View:
    """Passes the events that concern one topic to a ``Checker``."""

    def __init__(self, topic: str, checker: Checker) -> None:
        self.checker = checker
        self._topic = topic
        self._ends: list[int] = []  # when its worker ended
        self._begun: dict[str, int] = {}  # by connection: ends before it
        self._listening: dict[str, str] = {}  # by connection: its name at its last SUB or PULL
        self._subscribed: set[str] = set()  # connections

    def take(self, event: Event, workers: int) -> None:
        if event.worker is not None and event.worker != worker_of(self._topic, workers):
            return
        name = event.process
        match event.op:
            case "connect":
                self._begun[name] = len(self._ends)
            case "disconnect":
                begun = self._begun.pop(name, len(self._ends))
                self._listening.pop(name, None)
                self._subscribed.discard(name)
                for number in range(begun + 1, len(self._ends) + 1):
                    self.checker.feed(replace(event, process=f"{name}{OF_A_LIFE}{number}"))
            case "kill" | "stop":
                self.checker.feed(event)
                self._ends.append(event.t_ns)
                for other in self._begun:
                    self.checker.feed(Event(event.t_ns, f"{other}{OF_A_LIFE}{len(self._ends)}", "connect"))
                return
            case "deliver" if name in self._begun:
                event = replace(event, process=self._listening.get(name, name))
            case _ if name in self._begun:
                event = self._of_its_worker(event)
            case _:
                pass
        self.checker.feed(event)
        if event.process.endswith("?") and event.op == "pull":
            self.checker.feed(Event(event.t_ns, event.process, "disconnect", note=OF_EITHER))

    def _of_its_worker(self, event: Event) -> Event:
        """Return a command with the connection name that it has in the view of the topic's worker."""
        name, begun = event.process, self._begun[event.process]
        if name in self._subscribed:
            return replace(event, process=self._listening.get(name, name))
        sent_ns = event.t_ns if event.sent_ns is None else event.sent_ns
        first = max(begun, bisect_left(self._ends, sent_ns))
        last = max(first, bisect_left(self._ends, event.t_ns - REPLACED_NS))
        if event.result == "ok" and first < last and event.op in ("ack", "nack") and not event.sync:
            event = replace(event, result="unknown", note=OF_EITHER)
        number = first if event.result == "unknown" else last
        process = name if number == begun else f"{name}{OF_A_LIFE}{number}"
        if event.op == "pull" and number > first:
            process += "?"
        if event.op in ("sub", "pull"):
            self._listening[name] = process
        if event.op == "sub" and event.result == "ok":
            self._subscribed.add(name)
        return replace(event, process=process)
