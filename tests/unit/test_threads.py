"""Threads that the operating system refuses to start."""

import errno
import threading

import pytest

from toymq_py.threads import start_thread


def test_a_thread_that_cannot_be_started_is_an_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match="ulimit -u") as caught:
        start_thread(lambda: None, "name")
    assert caught.value.errno == errno.EAGAIN
