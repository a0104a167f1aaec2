"""What a command says on stderr when an answer is late: it waits for one that may come, and a silent command looks hung."""

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
    """Says once what is waited for, of each kind. A context manager for one command; ``waiting`` and ``each`` mark what waits
    for an answer."""

    def __init__(self, what: What) -> None:
        """``what``: what is waited for unless ``waiting`` names something else. Called by the thread."""
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
        """While the block runs, an answer about the topic is waited for."""
        self._waits, self._moved = (topic, what or self._usual), True
        try:
            yield
        finally:
            self._waits = None

    def each(self, topic: str, answers: Iterable[T]) -> Iterator[T]:
        """The answers, each of which is waited for."""
        with self.waiting(topic):
            for answer in answers:
                self._moved = True
                yield answer

    def look(self) -> None:
        """Say what is waited for when nothing came since the last look."""
        if (waits := self._waits) is not None and not self._moved and waits[1] not in self._said:
            topic, what = waits
            self._said.add(what)
            click.echo(f"toymqctl: {what(topic)}", err=True)
        self._moved = False

    def _run(self) -> None:
        while not self._ended.wait(LOOK_S):
            self.look()


def partitions_of(topic: str) -> str:
    """What a look for the partitions of a topic waits for."""
    return f"waiting to hear whether {topic} is partitioned: a group, or a worker, may be away"


def publishes_of(client: sync.Client) -> What:
    """What a publish of a client to a topic waits for."""

    def what(topic: str) -> str:
        place = client._homes.place(topic)
        trouble = next((link.trouble for link in list(client._links) if link.trouble), "")
        where = f": {place}{trouble}" if place else trouble
        return f"waiting up to {client._options.timeout_s:g} s for the answer to a publish to {topic}{where}"

    return what
