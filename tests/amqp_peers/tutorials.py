"""The tutorials of RabbitMQ, unchanged: programs of a checkout, run against a broker on RabbitMQ's port.

Those with pika are in rabbitmq/rabbitmq-tutorials, those with aio-pika in its own repository. Nothing of theirs is kept.
"""

import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.broker_process import BrokerProcess

ADDRESS = "127.0.0.1:5672"
WITHIN_S = 60.0


class Tutorial(NamedTuple):
    """A program that waits, or none; one that sends; and what either says when it worked."""

    waits: tuple[str, ...]
    sends: tuple[str, ...]
    says: str


PIKA = (
    Tutorial(("receive.py",), ("send.py",), "Received Hello World!"),
    Tutorial(("worker.py",), ("new_task.py", "First."), "Received First."),
    Tutorial(("receive_logs.py",), ("emit_log.py", "said"), "said"),
    Tutorial(("receive_logs_direct.py", "error"), ("emit_log_direct.py", "error", "said"), "error:said"),
    Tutorial(("receive_logs_topic.py", "kern.*"), ("emit_log_topic.py", "kern.critical", "said"), "kern.critical:said"),
    Tutorial(("rpc_server.py",), ("rpc_client.py",), "Got 832040"),
)
AIO_PIKA = (
    Tutorial(("1-introduction/receive.py",), ("1-introduction/send.py",), "Message body is: b'Hello World!'"),
    Tutorial(("2-work-queues/tasks_worker.py",), ("2-work-queues/new_task.py", "First."), "Message body is: b'First.'"),
    Tutorial(("3-publish-subscribe/receive_logs.py",), ("3-publish-subscribe/emit_log.py", "said"), "b'said'"),
    Tutorial(("4-routing/receive_logs_direct.py", "error"), ("4-routing/emit_log_direct.py", "error", "said"), "said"),
    Tutorial(("5-topics/receive_logs_topic.py", "kern.*"), ("5-topics/emit_log_topic.py", "kern.critical", "said"), "said"),
    Tutorial(("6-rpc/rpc_server.py",), ("6-rpc/rpc_client.py",), "Got 832040"),
    Tutorial((), ("7-publisher-confirms/publish_individually.py",), "Sent and confirmed"),
    Tutorial((), ("7-publisher-confirms/publish_batches.py",), "Sent and confirmed"),
    Tutorial((), ("7-publisher-confirms/publish_asynchronously.py",), "Sent and confirmed"),
)
PLACES = {"python": PIKA, "docs/source/rabbitmq-tutorial/examples": AIO_PIKA}
"""Where the programs are in a checkout."""


class Program:
    """A program, and what it has said. A context manager; what is left is killed."""

    def __init__(self, folder: Path, command: tuple[str, ...]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-u", *command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": ""},
        )  # fmt: skip
        self.said = ""

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def says(self, text: str) -> bool:
        """Wait until it has said a text. Returns: False when it ended, or said nothing for a while."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while text not in self.said:
                data = os.read(self._process.stdout.fileno(), 1 << 16) if selector.select(WITHIN_S) else b""
                if not data:
                    return False
                self.said += data.decode()
        return True


@contextmanager
def waiting(folder: Path, command: tuple[str, ...]) -> Iterator[Program | None]:
    """The program that waits, once it does."""
    if not command:
        yield None
        return
    with Program(folder, command) as program:
        program.says("[")  # [*] or [x]: it is ready
        yield program


def failures(checkout: Path) -> Iterator[str]:
    """Run the tutorials of a checkout, each against a broker of its own: two of aio-pika's declare the exchange ``logs``, with
    different types. Yields: a line for each that does not work."""
    (place,) = [place for place in PLACES if (checkout / place).is_dir()]
    for tutorial in PLACES[place]:
        with (
            tempfile.TemporaryDirectory() as directory, BrokerProcess(Path(directory) / "d", "--amqp", ADDRESS),
            waiting(checkout / place, tutorial.waits) as first, Program(checkout / place, tutorial.sends) as second,
        ):  # fmt: skip
            asks = first is None or "Got" in tutorial.says
            if not (second if asks or first is None else first).says(tutorial.says):
                said = f"{first.said if first is not None else ''}\n{second.said}"
                yield f"{' '.join(tutorial.sends)}: {tutorial.says!r} was expected\n{said}"
