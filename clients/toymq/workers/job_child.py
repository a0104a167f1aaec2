"""The child's end of ``job_process``: runs in a process of its own and calls a job's function."""

import importlib
import json
import logging
import os
import signal
import threading
import traceback
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from toymq.message import Delivery
from toymq.nack_reason import encodable, text_of
from toymq.workers import job as job_module
from toymq.workers.job import Job, Settings, Unfit
from toymq.workers.job_messages import Answer, Done, LogLine, Place, Raised, Refused, Request, Unusable
from toymq.workers.replies import result_of
from toymq_py.errors import ConfigError
from toymq_py.protocol import MessagePush

_OURS = (__file__, job_module.__file__)
"""Files whose frames say nothing of a job."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Signals that are for the worker alone, also where all processes of a terminal or service get them. Blocked when the process
starts."""
_SIMPLE = (str, int, float, bool, type(None))


def main(place: Place, connection: Connection, lifeline: Connection, level: int) -> None:
    """Find the function, then call it for each request until the worker, the parent process, is gone."""
    os.setsid()  # Ctrl-C at a terminal is for the worker; and a kill reaches what the function has started
    for number in SIGNALS:
        signal.signal(number, _leave_it_to_the_worker)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    threading.Thread(target=_end_with_worker, args=(lifeline,), name="toymq lifeline", daemon=True).start()
    said = Said(connection)
    logging.getLogger().addHandler(said)
    logging.getLogger().setLevel(level)
    try:
        job = find(place)
    except BaseException as error:  # noqa: BLE001 (of the user's module)
        text = str(error) if isinstance(error, ConfigError) else "".join(traceback.format_exception(error)).rstrip()
        said.say(Unusable(text))
        return
    said.say(None)
    try:
        while True:
            said.say(answer(job, connection.recv()))
    except (EOFError, ConnectionError):  # the worker is gone, or has no more work
        return


def _leave_it_to_the_worker(number: int, frame: FrameType | None) -> None:
    """Ignore a signal that goes to all processes of a service: the worker handles it and lets jobs end. This is a handler and
    not ``SIG_IGN``, which processes started by the function would inherit."""


def _end_with_worker(lifeline: Connection) -> None:
    """Wait, in a thread, until the worker is gone; then end this process and the processes that it has started."""
    try:
        lifeline.recv_bytes()
    except (EOFError, OSError):
        os.killpg(0, signal.SIGKILL)


def find(place: Place) -> Job[..., Any]:
    """Import the job at a ``Place``. Raises: ConfigError, and what the import raises."""
    found: Any = importlib.import_module(place.module)
    for name in place.qualname.split("."):
        found = getattr(found, name, None)
    if isinstance(found, Job):
        if found.topic != place.topic:
            raise ConfigError(
                f"there it is the worker of {found.topic}, not of {place.topic}: two functions of the module have this name"
            )
        return found
    if not callable(found):
        raise ConfigError(f"{place.module} has no {place.qualname} when another process imports it")
    return Job(None, found, place.topic, Settings())


def answer(job: Job[..., Any], request: Request) -> Answer:
    """Call the function for a message, and return the outcome for the worker."""
    push = MessagePush(
        request.topic, request.msg_id, request.attempt, request.ts_ns, request.key, request.headers, request.payload
    )
    try:
        arguments = job.arguments_of(Delivery(push))
    except Unfit as error:
        return Refused(str(error))
    try:
        found = job.call_plain(arguments)
        return Done(result_of(job.name, found) if request.wanted else None)
    except SystemExit as error:
        return raised(RuntimeError(f"{job.name} called sys.exit({error.code!r})"))
    except BaseException as error:  # noqa: BLE001 (of the function)
        return raised(error)


def raised(error: BaseException) -> Raised:
    """Describe an exception in plain data for the worker: the object itself may not survive pickling."""
    bases = (kind for kind in type(error).__mro__ if issubclass(kind, BaseException))
    kinds = tuple((kind.__module__, encodable(kind.__qualname__)) for kind in bases)
    own = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename in _OURS:
        own = own.tb_next
    lines = traceback.format_exception(type(error), error, own)
    return Raised(kinds, text_of(error), encodable("".join(lines)))


class Said(logging.Handler):
    """A logging handler that sends the process's log records to the worker; it also sends the answers."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._sending = threading.Lock()

    def say(self, what: object) -> None:
        with self._sending:
            self._connection.send(what)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields = {
                name: value if isinstance(value, _SIMPLE) else _plain(value)
                for name, value in vars(record).items()
                if name not in ("msg", "message", "args", "exc_info")
            }
            fields |= {"msg": record.getMessage(), "args": None}
            if record.exc_info is not None and record.exc_info[0] is not None:
                fields["exc_text"] = "".join(traceback.format_exception(*record.exc_info)).rstrip()
            self.say(LogLine(fields))
        except Exception:  # noqa: BLE001 (as every handler does)
            self.handleError(record)


def _plain(value: object) -> Any:
    """Convert a value of ``extra`` in a log record to a form that any process can unpickle."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return repr(value)
