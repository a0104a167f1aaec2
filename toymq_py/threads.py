"""Starts daemon threads. If the operating system refuses a thread (a limit of processes), an ``OSError`` is raised."""

import errno
import threading
from collections.abc import Callable


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    """Start a daemon thread. Raises: OSError (EAGAIN) when the machine has no thread left for this process."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, f"cannot start a thread ({error}): raise the limit of processes, as of ulimit -u") from None
    return thread
