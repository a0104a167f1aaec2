"""Job functions of tests/e2e/workers/test_job_process.py, which other processes import; they report in files what they do."""

import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import toymq

logger = logging.getLogger("shop")


class TwoTexts(LookupError):
    """An exception that pickle can write and not read, since its ``__init__`` needs two arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")
        self.first = first


def say(path: Path, text: str) -> None:
    """Write a file, which is complete as soon as it exists."""
    path.with_suffix(".part").write_text(text)
    path.with_suffix(".part").rename(path)


def add(first: int, second: int) -> int:
    return first + second


def odd() -> object:
    return object()


def where() -> int:
    return os.getpid()


def fail(kind: str) -> None:
    if kind == "two texts":
        raise TwoTexts("one", "another")
    if kind == "exit":
        sys.exit("enough")
    if kind == "surrogates":
        raise ValueError("\udcff\ud800")
    raise ValueError(f"no {kind}")


def end(how: str) -> None:
    """End this process itself, in the way ``how``."""
    if how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
        threading.Event().wait()
    if how == "forked" and os.fork() == 0:
        threading.Event().wait()  # holds what the process had open
    os._exit(3)


def wait(folder: Path, name: str) -> None:
    """Wait until a file ``go`` exists, together with a program that the function starts."""
    with subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as program:
        say(folder / name, f"{os.getpid()} {program.pid}")
        while not (folder / "go").exists():
            threading.Event().wait(0.01)
    say(folder / f"{name}-done", "")


def tell(message: toymq.Message) -> None:
    logger.warning("%s arrives", message.payload.decode(), extra={"size": len(message.payload), "odd": object()})
    try:
        fail("look")
    except ValueError:
        logger.exception("and this")


def coroutine() -> object:
    return _nothing()


async def _nothing() -> None: ...
