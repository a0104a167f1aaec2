"""Says on stderr what a command waits for when an answer is late: the answer may still come, but a silent command looks
hung."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

import click

from toymq import sync

LOOK_S = 1.5
"""How often a thread looks. An answer is late when none has come from one look to the next."""

T = TypeVar("T")
What = Callable[[str], str]
"""Says what is waited for, of a topic."""


class LateAnswers:
    """Prints a line for each kind of late answer, once. A context manager for one command; the code that waits for answers runs
    within ``waiting`` or ``each``."""

    def __init__(self, what: What) -> None:
        """``what``: describes what is waited for, unless ``waiting`` gets another description. It is called by this object's
        thread."""
        self._usual = what
        self._waits: tuple[str, What] | None = None  # for an answer about a topic
        self._moved = False  # since the last look
        self._said: set[What] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="late-answers", daemon=True)

    def __enter__(self) -> "LateAnswers":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    @contextmanager
    def waiting(self, topic: str, what: What | None = None) -> Iterator[None]:
        """Mark the time of a block as waiting for an answer about a topic."""
        self._waits, self._moved = (topic, what or self._usual), True
        try:
            yield
        finally:
            self._waits = None

    def each(self, topic: str, answers: Iterable[T]) -> Iterator[T]:
        """Yield the answers, and mark the time before each as waiting for it."""
        with self.waiting(topic):
            for answer in answers:
                self._moved = True
                yield answer

    def look(self) -> None:
        """Print what is waited for if no answer has come since the last look."""
        if (waits := self._waits) is not None and not self._moved and waits[1] not in self._said:
            topic, what = waits
            self._said.add(what)
            click.echo(f"toymqctl: {what(topic)}", err=True)
        self._moved = False

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.look()


def partitions_of(topic: str) -> str:
    """Describe a wait for the answer whether a topic is partitioned."""
    return f"waiting to hear whether {topic} is partitioned: a group, or a worker, may be away"


def publishes_of(client: sync.Client) -> What:
    """Return a function that describes a wait for a client's publish to a topic."""

    def what(topic: str) -> str:
        place = client._homes.place(topic)
        trouble = next((link.trouble for link in list(client._links) if link.trouble), "")
        where = f": {place}{trouble}" if place else trouble
        return f"waiting up to {client._options.timeout_s:g} s for the answer to a publish to {topic}{where}"

    return what
