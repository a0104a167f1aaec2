"""A job: a function that is called for each message of a topic. This module encodes its arguments as a message, and decodes
them.

The payload is a JSON object of the arguments by name, ``{"path": "a.png", "width": 100}``, so any program can publish a job.
"""

import inspect
import logging
import typing
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar

from toymq import arguments, json_values
from toymq.arguments import Seconds, shown
from toymq.client import Client
from toymq.errors import ClientClosed
from toymq.keyword_hints import hinted
from toymq.message import Delivery, Key, Receipt
from toymq.workers.replies import Replies
from toymq.workers.retries import Retries
from toymq_py.consumer_options import Mode
from toymq_py.errors import BadArgument, ConfigError

logger = logging.getLogger("toymq.workers")

P = ParamSpec("P")
R = TypeVar("R")
GROUP = "toymq-group"
"""The header that names the group of a job, for ``mode="keyed"``."""
Executor = Literal["thread", "process"]
_NO_RETRIES_OF_ITS_OWN = Retries()
EXECUTORS: tuple[Executor, ...] = ("thread", "process")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Unfit(BadArgument):
    """Raised when a message does not fit the job's function: the function is not called, and a retry would not help."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How one worker takes and runs its jobs.

    Attributes:
        consumer: name of the shared consumer; each job goes to one of its workers.
        concurrency: most jobs at once in one process; for a plain function, its number of threads.
        window: most unacked messages of one process.
        visibility: seconds of a lease, which is renewed while a job runs; None takes the topic's.
        timeout_s: seconds after which a coroutine is cancelled, or a process killed; None: never.
        executor: where a plain function is called: in a thread or in a process.
    """

    consumer: str = "workers"
    concurrency: int = 1
    window: int = 1
    visibility: Seconds | None = None
    timeout_s: float | None = None
    retries: Retries = _NO_RETRIES_OF_ITS_OWN
    mode: Mode = "shared"
    executor: Executor = "thread"


class Connection(Protocol):
    """Returns the client that publishes jobs. Raises: ClientClosed when there is none."""

    @property
    def client(self) -> Client: ...
    @property
    def replies(self) -> Replies: ...


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """Options for publishing a job, as in ``Client.pub``; ``timeout_s`` is the time limit of ``Job.call``."""

    key: Key | None = None
    headers: Mapping[str, str] | None = None
    delay: Seconds | None = None
    ttl: Seconds | None = None
    timeout_s: float = 30.0


def _named(function: Any) -> Any:
    """Return the part of a callable that has its name and annotations: the function of a ``functools.partial``, the
    ``__call__`` of an object."""
    while isinstance(function, partial):
        function = function.func
    return function if hasattr(function, "__qualname__") else type(function).__call__


class Job(Generic[P, R]):
    """What ``App.worker`` makes of a function. To call the ``Job`` is to call the function, here and now; ``send`` publishes a
    job.

    Attributes:
        function: the function itself.
        name: the function's module and name, for logs.
        topic: the topic to which jobs are published.
    """

    def __init__(self, connection: Connection | None, function: Callable[P, R], topic: str, settings: Settings) -> None:
        """``connection``: None in a process that does not publish the job. Raises: TypeError for a function that cannot be a
        job, or has a parameter that no JSON can fill; ConfigError."""
        self.function = function
        self._named = _named(function)
        self.__name__ = self._named.__name__
        qualname = self._named.__qualname__
        self.name = f"{self._named.__module__}.{qualname}"
        self.topic = topic
        self.settings = settings
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{self.name} has a `yield`: calling it would do nothing; write a function that returns")
        if next(iter(inspect.signature(function).parameters), None) == "self" and "." in qualname.rpartition("<locals>.")[2]:
            raise TypeError(f"{self.name} is a method: a job has no `self`; write a function outside of the class")
        self.is_async = inspect.iscoroutinefunction(self._named)
        self._check_executor(qualname)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        self._connection = connection
        self._options = PublishOptions()
        self._warned_of_key = False
        self._read_signature()

    def _check_executor(self, qualname: str) -> None:
        """Check that the function can run in the job's executor. Raises: ConfigError."""
        settings = self.settings
        if settings.executor == "process":
            if self.is_async:
                raise ConfigError(f"executor of {self.name}: a process calls a plain function: write `def`, not `async def`")
            if "<" in qualname or self._named is not self.function:
                raise ConfigError(
                    f"executor of {self.name}: another process cannot import it: define it with `def` in a module, outside of"
                    " other functions"
                )
        elif settings.timeout_s is not None and not self.is_async:
            raise ConfigError(
                f"timeout of {self.name}: a function that runs in a thread cannot be stopped; write `async def`, add"
                ' executor="process", or give the calls in it time limits of their own'
            )

    @property
    def needed(self) -> tuple[str, ...]:
        """The arguments without a default, in the order of the function's parameters."""
        return tuple(name for name in self._readers if name in self._needed)

    @property
    def connection(self) -> Connection:
        """The connection over which jobs are published. Raises: ClientClosed."""
        if self._connection is None:
            raise ClientClosed(f"{self.name} has no app here: publish with a client of your own")
        return self._connection

    def _read_signature(self) -> None:
        """Find out how to decode each argument, from the function's signature. Raises: TypeError."""
        self._signature = inspect.signature(self.function)
        try:
            hints = typing.get_type_hints(self._named)
        except Exception as error:
            raise TypeError(f"the annotations of {self.name} cannot be read: {error}") from error
        self._readers: dict[str, tuple[str, json_values.Reader]] = {}
        """How each argument is read, and what errors call it."""
        self._needed: set[str] = set()
        self._message_names: list[str] = []
        for name, parameter in self._signature.parameters.items():
            hint = hints.get(name, Any)
            if parameter.kind not in _NAMED:
                raise TypeError(f"{self.name}: its parameter {parameter} has no name of its own: a job's arguments go by name")
            if isinstance(hint, type) and issubclass(hint, Delivery):
                self._message_names.append(name)
                continue
            reader = json_values.reader_of(f"parameter {name} of {self.name}", hint)
            self._readers[name] = f"argument {name} of {self.name}", reader
            if parameter.default is inspect.Parameter.empty:
                self._needed.add(name)
        self._read_result = json_values.result_reader(hints.get("return", Any))
        self._sent = self._signature.replace(
            parameters=[one for name, one in self._signature.parameters.items() if name in self._readers]
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Job {self.name} of {self.topic}>"

    # -- publishing

    @hinted
    def options(
        self, *, key: Key | None = None, group: str | None = None, headers: Mapping[str, str] | None = None,
        delay: Seconds | None = None, ttl: Seconds | None = None, timeout: Seconds = 30.0,
    ) -> "Job[P, R]":  # fmt: skip
        """Return the same job with options for publishing it: ``resize.options(delay="5m").send("a.png")``.

        Args:
            key: the topic stores only one job for each key. To have jobs done in order, use ``group``.
            group: the header ``toymq-group``: a worker with ``mode="keyed"`` does the jobs of a group one after the other.
            timeout: how long ``call`` waits for the result.
        """
        if group is not None:
            headers = {**(headers or {}), GROUP: group}
        elif key is not None and self.settings.mode == "keyed" and not self._warned_of_key and GROUP not in (headers or {}):
            self._warned_of_key = True
            logger.warning(
                "%s: key=%r: the topic stores one job for each key and drops the next ones; to do the jobs of a key in order,"
                " use options(group=…)", self.name, key,
            )  # fmt: skip
        other = copy(self)
        other._options = PublishOptions(key, headers, delay, ttl, arguments.duration_ms("timeout", timeout, 1) / 1000)
        return other

    def payload(self, *args: P.args, **kwargs: P.kwargs) -> bytes:
        """Encode the arguments of a call as a payload, which any client can publish: ``mq.pub(resize.topic,
        resize.payload("a.png"))``.

        Raises: TypeError for an argument that the function does not take, whose type is not that of its annotation, or that
            JSON cannot express; BadArgument.
        """
        if not self._readers and self._message_names:
            raise TypeError(f"{self.name} takes the message itself: publish any payload to {self.topic}")
        try:
            bound = self._sent.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None
        values = {name: self._written(name, one) for name, one in bound.arguments.items()}
        return json_values.dump(f"the job of {self.name}", values)

    def _written(self, name: str, value: object) -> Any:
        """Convert an argument for JSON, and decode it as the worker will: so a wrong type is an error here, not a dead letter
        later.

        Raises: TypeError, BadArgument (nan, too deep).
        """
        what, reader = self._readers[name]
        found = json_values.write(what, value)
        try:
            reader(what, found)
        except BadArgument as error:
            raise TypeError(str(error)) from None
        return found

    async def send(self, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """Publish a job, and wait until it is on stable storage.

        Raises: TypeError, BadArgument, and as ``Client.pub``; ClientClosed outside of the app's ``async with`` block.
        """
        payload, with_ = self.payload(*args, **kwargs), self._options
        return await self.connection.client.pub(
            self.topic, payload, key=with_.key, headers=with_.headers, delay=with_.delay, ttl=with_.ttl
        )

    async def call(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Publish a job and wait for what its function returns. A job that no worker has begun by ``timeout`` is dropped.

        Raises: JobFailed (the job is a dead letter), RequestTimeout, and as ``send``.
        """
        payload, with_ = self.payload(*args, **kwargs), self._options

        async def publish(headers: dict[str, str], left_s: float) -> Receipt:
            return await self.connection.client.pub(
                self.topic, payload, key=with_.key, headers={**(with_.headers or {}), **headers}, delay=with_.delay,
                ttl=left_s if with_.ttl is None else with_.ttl,
            )  # fmt: skip

        found = await self.connection.replies.call(self.name, publish, with_.timeout_s)
        return self._read_result(f"the result of {self.name}", found)

    # -- running

    def at_once(self, concurrency: int | None, window_per_slot: int) -> "Job[P, R]":
        """Return the same job with another concurrency; None keeps it."""
        if concurrency is None:
            return self
        other = copy(self)
        other.settings = replace(self.settings, concurrency=concurrency, window=concurrency * window_per_slot)
        return other

    def arguments_of(self, message: Delivery) -> dict[str, Any]:
        """Decode a message to the function's arguments. Raises: Unfit, which names the argument and the value."""
        found: dict[str, Any] = dict.fromkeys(self._message_names, message)
        readers = self._readers
        if not readers and (self._message_names or not message.payload):
            return found
        try:
            values = json_values.load(message.payload)
            if not isinstance(values, dict):
                raise Unfit(f"a job is a JSON object of arguments by name, not {shown(values)}")
            if not values.keys() >= self._needed:
                missing = ", ".join(sorted(self._needed - values.keys()))
                raise Unfit(f"the job has no {missing}, which {self.name} needs")
            for name, value in values.items():
                if name not in readers:
                    raise Unfit(f"the job has {shown(name)}, which {self.name} does not know")
                what, reader = readers[name]
                found[name] = reader(what, value)
        except BadArgument as error:
            raise Unfit(str(error)) from None
        return found

    def call_plain(self, arguments: dict[str, Any]) -> object:
        """Call the plain function. Raises: what it raises; RuntimeError in place of StopIteration, which a future cannot hold;
        TypeError."""
        try:
            found: object = self.function(**arguments)  # type: ignore[call-arg]
        except (StopIteration, GeneratorExit) as error:
            raise RuntimeError(f"the function raised {type(error).__name__}") from error
        if inspect.isawaitable(found):
            if inspect.iscoroutine(found):
                found.close()
            raise TypeError(
                f"{self.name} returned {type(found).__name__} and did none of its work: a function that awaits is written"
                " `async def`, also where a decorator wraps it"
            )
        return found
