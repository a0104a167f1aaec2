"""Call every callback of an event, even when one of them raises."""

import logging
from collections.abc import Callable, Iterable
from typing import ParamSpec

P = ParamSpec("P")

logger = logging.getLogger("toymq_py")


def call_all(calls: Iterable[Callable[P, object]], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call each callback. An exception, which is a bug, is logged, and the other callbacks are still called: they may belong to
    other sessions."""
    for call in calls:
        try:
            call(*args, **kwargs)
        except Exception:
            logger.exception("a bug in %r", call)


def run_now(job: Callable[[], None], done: Callable[[], None]) -> None:
    """Run a job and the function behind it at once, where other callers run the job on a thread."""
    job()
    done()
