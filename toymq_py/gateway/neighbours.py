"""Asks the other workers of this broker over their Unix sockets, for lists and scrapes. ADR 0157.

Workers are asked with all rights; the caller shows only what its client may see. Each worker answers only for itself.
"""

import asyncio
import json
import re
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from starlette.responses import Response

from toymq_py.errors import PlacementUnknown, ShuttingDown
from toymq_py.gateway.http_heads import EVERY_TOKEN, FORWARDED
from toymq_py.heartbeat import LOOK_AT_BEATS_S
from toymq_py.merging import merged_topics
from toymq_py.placement import REACH_S, Place, Placement

WITHIN_S = 5.0
"""How long to wait for a worker: one that is being replaced serves again by then."""
FRESH_S = 1.0
"""A worker that has answered within this time is up. Any other is asked before a request is sent to it: if it does not answer,
it is known to have done nothing (ADR 0225)."""
LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
AGAIN = ": try again"
IN_PART = "; part of it may be done: repeat it"
NOTHING = "; nothing was done: repeat it"
"""The end of the error for a request that one worker has not answered: for a question, for a change that others may have made,
and for one that none has made."""
T = TypeVar("T")


class Neighbours:
    """The other workers of this broker. Without any, nothing is asked. Belongs to the broker's event loop."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._answered: dict[int, float] = {}  # when, by worker

    async def ask(self, path: str) -> list[bytes]:
        """The answers of all other workers to ``GET path``, in order. Raises: PlacementUnknown when one does not answer."""
        return await asyncio.gather(*(self._ask(worker, path) for worker in self._placement.others()))

    async def change(self, method: str, path: str, body: bytes = b"", at: Sequence[int] | None = None) -> None:
        """Make the same change at all other workers, or at those in ``at``. Deleting what a worker does not have is a success.

        Raises: PlacementUnknown: a worker cannot be reached, and none has made the change; or a worker ended meanwhile or
        refused, and others may have made it.
        """
        await self.reach_all()
        expected = (200, 201, 204, 404) if method == "DELETE" else (200, 201)
        others = self._placement.others() if at is None else at
        await asyncio.gather(*(self._ask(worker, path, method, body, expected) for worker in others))

    async def delete_where(self, path: str, is_wanted: Callable[[dict[str, Any]], bool]) -> bool:
        """Delete the object at ``path`` at the other workers where its JSON passes ``is_wanted``. Returns: whether any had such
        an object. Raises: as ``change``."""
        await self.reach_all()
        found = zip(self._placement.others(), await self.ask_each("GET", path), strict=True)
        there = [worker for worker, (status, answer) in found if status == 200 and is_wanted(json.loads(answer))]
        await self.change("DELETE", path, at=there)
        return bool(there)

    async def ask_each(self, method: str, path: str, body: bytes = b"") -> list[tuple[int, bytes]]:
        """The status and answer of each other worker to a request. The status 421, by which a worker redirects, is returned as
        404: it has no such object. Raises: PlacementUnknown, as ``change``."""
        if method != "GET":
            await self.reach_all()
        expected = (200, 201, 204, 404)
        found = await asyncio.gather(*(self._exchange(other, path, method, body) for other in self._placement.others()))
        found = [(404 if status == 421 else status, answer) for status, answer in found]
        for worker, (status, answer) in zip(self._placement.others(), found, strict=True):
            if status not in expected:
                raise _failed(worker, method, f"answers {status} to {method} {path}, {answer[:200]!a}")
        return found

    async def post(self, worker: int, path: str, lines: bytes) -> Response:
        """The answer of one worker to a batch of JSON lines.

        Raises: PlacementUnknown when the worker cannot be reached and has done nothing; ShuttingDown when it ended meanwhile,
        and may have stored the messages.
        """
        connection = await self.connect(worker)
        work = _exchange(connection, "POST", path, lines, "application/x-ndjson")
        try:
            status, answer = await self.answer(worker, work)
        except (OSError, ValueError, PlacementUnknown) as error:
            raise self.unanswered(worker) from error
        return Response(answer, status)

    async def topics(self, query: str = "") -> list[dict[str, Any]]:
        """The topics of all other workers, in the order of their names. Raises: PlacementUnknown."""
        answers = await self.ask(f"/v1/topics{query}")
        return list(merged_topics(json.loads(answer)["topics"] for answer in answers))

    async def stats(self) -> list[dict[str, Any]]:
        """The statistics of each other worker. Raises: PlacementUnknown."""
        return [json.loads(answer) for answer in await self.ask("/v1/stats")]

    async def stats_of(self, worker: Place) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The statistics and topics of another worker. Raises: PlacementUnknown."""
        assert isinstance(worker, int)
        stats, topics = await asyncio.gather(self._ask(worker, "/v1/stats"), self._ask(worker, "/v1/topics"))
        return json.loads(stats), json.loads(topics)["topics"]

    async def _ask(
        self, worker: int, path: str, method: str = "GET", body: bytes = b"", expected: Sequence[int] = (200,)
    ) -> bytes:
        status, answer = await self._exchange(worker, path, method, body)
        if status not in expected:
            raise _failed(worker, method, f"answers {status} to {method} {path}")
        return answer

    async def reach(self, worker: int, fresh_s: float = FRESH_S) -> None:
        """Wait until a worker answers, unless it did a moment ago. To connect proves nothing: the operating system accepts
        connections for a worker that is down, and its successor gets the bytes. Raises: PlacementUnknown, at once for a
        worker that is known to stand still.
        """
        now = asyncio.get_running_loop().time
        if now() - self._answered.get(worker, -fresh_s) >= fresh_s:
            await self._exchange(worker, "/healthz", within_s=REACH_S)
            self._answered[worker] = now()

    async def reach_all(self, fresh_s: float = FRESH_S) -> None:
        """Wait until all other workers answer. Raises: PlacementUnknown."""
        await asyncio.gather(*(self.reach(worker, fresh_s) for worker in self._placement.others()))

    async def connect(self, worker: int) -> socket.socket:
        """Connect to a worker that answers. Raises: PlacementUnknown."""
        await self.reach(worker)
        try:
            return self._connected(worker)
        except OSError as error:
            raise _failed(worker, "GET", f"cannot be reached ({error.strerror or error})") from error

    async def answer(self, worker: int, work: Coroutine[Any, Any, T]) -> T:
        """Wait for an answer of a worker, for as long as it is alive. Raises: PlacementUnknown, and as ``work``."""
        waits = asyncio.ensure_future(work)
        try:
            while not await self._is_done(worker, waits, REACH_S):
                await self.reach(worker)
        finally:
            waits.cancel()
        if answer := waits.result():  # b"": it has ended
            self._answered[worker] = asyncio.get_running_loop().time()
        return answer

    async def _within(self, worker: int, work: Coroutine[Any, Any, T], within_s: float) -> T:
        """Wait for an answer of a worker for a limited time. Raises: TimeoutError, PlacementUnknown, and as ``work``."""
        waits = asyncio.ensure_future(work)
        try:
            if not await self._is_done(worker, waits, within_s):
                raise TimeoutError
        finally:
            waits.cancel()
        return waits.result()

    async def _is_done(self, worker: int, waits: asyncio.Future[T], within_s: float) -> bool:
        """Wait for an answer for a limited time. Returns: whether it came. Raises: PlacementUnknown for a worker that stands
        still."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        while not waits.done() and (left_s := until - loop.time()) > 0:
            await asyncio.wait({waits}, timeout=min(left_s, LOOK_AT_BEATS_S))
            if not waits.done():
                self._check(worker)
        return waits.done()

    def _check(self, worker: int, end: str = "") -> None:
        """Refuse to ask a worker that is known to stand still. Raises: PlacementUnknown."""
        if problem := self._placement.problem_of(worker):
            raise PlacementUnknown(f"worker {worker} {problem}{end}")

    def unanswered(self, worker: int) -> ShuttingDown:
        """The error when a worker has not answered a request that cannot be repeated safely."""
        why = self._placement.problem_of(worker) or "ended before it answered"
        return ShuttingDown(f"worker {worker} {why}: the outcome is unknown")

    async def _exchange(
        self, worker: int, path: str, method: str = "GET", body: bytes = b"", within_s: float = WITHIN_S
    ) -> tuple[int, bytes]:
        """Send a request to a worker and read its answer. A change has no time limit while the worker is alive. Raises:
        PlacementUnknown."""
        end = "" if method == "GET" else IN_PART
        self._check(worker, end)
        try:
            work = _exchange(self._connected(worker), method, path, body, "application/json")
            if method != "GET":
                return await self.answer(worker, work)
            return await self._within(worker, work, within_s)
        except PlacementUnknown as error:
            self._check(worker, end)
            raise _failed(worker, method, "no longer answers") from error
        except (OSError, TimeoutError, ValueError) as error:
            raise _failed(worker, method, f"does not answer ({str(error) or 'in time'})") from error

    def _connected(self, worker: int) -> socket.socket:
        """Connect to a worker. Raises: OSError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.connect(self._placement.http_sockets[worker])
        except OSError:
            connection.close()
            raise
        return connection


def _failed(worker: int, method: str, why: str) -> PlacementUnknown:
    """The error for a worker's missing or unexpected answer; says for a GET that it can be repeated, else what may be done."""
    return PlacementUnknown(f"worker {worker} {why}{AGAIN if method == 'GET' else IN_PART}")


async def _exchange(connection: socket.socket, method: str, path: str, body: bytes, media: str) -> tuple[int, bytes]:
    """Send a request and read its answer. Returns: status and body. Raises: OSError, ValueError."""
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    try:
        writer.write(
            b"%b %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: %d\r\n"
            b"content-type: %b\r\n%b: http - 0 %b\r\n\r\n%b"
            % (method.encode(), path.encode(), len(body), media.encode(), FORWARDED, EVERY_TOKEN.encode(), body)
        )
        head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    status, length = head.split(b" ", 2)[1:2], LENGTH.search(head)
    if not status or (length is not None and len(answer) < int(length[1])):
        raise ConnectionResetError("it ended before it answered")
    return int(status[0]), answer


def labelled_metrics(texts: Sequence[bytes]) -> bytes:
    """Merge the metrics of all workers to one text: each metric family once, its samples with the label ``worker``."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    end = ""
    for worker, text in enumerate(texts):
        for name, comments, samples in _families(text.decode()):
            if name == "EOF":
                end = "# EOF\n"
                continue
            families.setdefault(name, (comments, []))[1].extend(_labelled(sample, worker) for sample in samples)
    return "".join("\n".join((*comments, *samples)) + "\n" for comments, samples in families.values()).encode() + end.encode()


def _families(text: str) -> Iterator[tuple[str, list[str], list[str]]]:
    name, comments, samples = "", list[str](), list[str]()
    for line in text.splitlines():
        if line.startswith("# "):
            of = line.split(" ", 3)[1 if line == "# EOF" else 2]
            if of != name:
                if name:
                    yield name, comments, samples
                name, comments, samples = of, [], []
            comments.append(line)
        elif line:
            samples.append(line)
    if name:
        yield name, comments, samples


def _labelled(sample: str, worker: int) -> str:
    at = next(place for place, char in enumerate(sample) if char in "{ ")
    rest = sample[at + 1 :] if sample[at] == "{" else "}" + sample[at:]
    comma = "," if sample[at] == "{" and not rest.startswith("}") else ""
    return f'{sample[:at]}{{worker="{worker}"{comma}{rest}'
