"""Requests about a whole partitioned topic: carried out here, and at the other workers, which also have partitions. ADR 0184.

In a cluster with groups ``GroupErrands`` asks all groups (ADR 0199). With workers, the request goes to the worker that would
have a plain topic of the name; it asks the others, each of which acts only on its own partitions.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.requests import Request

from toymq_py import partition_operations
from toymq_py.errors import (
    BadArgument,
    IsPartitioned,
    Moved,
    NoSuchConsumer,
    NoSuchTopic,
    PlacementUnknown,
    RequestError,
)
from toymq_py.gateway.access import is_internal
from toymq_py.gateway.group_errands import GroupErrands
from toymq_py.gateway.http_heads import EVERY_TOKEN, LOGIN_OF
from toymq_py.gateway.neighbours import AGAIN, IN_PART, NOTHING
from toymq_py.gateway.operations import count
from toymq_py.gateway.request_context import Gateway
from toymq_py.names import DEAD_LETTERS, is_dead_letters
from toymq_py.partitions import PARTITIONS, PARTITIONS_MAX, described_whole, half_made

T = TypeVar("T")
ALL_PARTITIONS = count(
    PARTITIONS, "Of a partitioned topic, and needed there: how many partitions it has, to mean all of them. In the name of one "
    "partition `#` is written `%23`; a client drops what is behind a `#` and would ask for the whole topic.", 1, PARTITIONS_MAX
)  # fmt: skip


def is_whole(gateway: Gateway, name: str) -> bool:
    """Whether a name stands for a partitioned topic, or for the dead letters of all its partitions."""
    return gateway.broker.partitioned.find(name) is not None


def check_meant(gateway: Gateway, request: Request, name: str) -> None:
    """Refuse a change of all partitions unless the request states their number: a client may have cut the path of a single
    partition off at its ``#``, as in ``orders#3/messages/17``. ADR 0266. Raises: IsPartitioned, BadArgument."""
    said = ALL_PARTITIONS.of(request)
    topics = gateway.broker.partitioned.by_name
    whole = topics.get(name) or topics.get(name.removesuffix(DEAD_LETTERS))
    if whole is not None and said != whole.count:
        raise _not_meant(name, whole.name, whole.count)
    if whole is None and said is not None and gateway.broker.has(name):
        raise BadArgument(f"{name} is not partitioned: leave out {PARTITIONS}={said}")


async def check_meant_elsewhere(gateway: Gateway, request: Request, name: str) -> None:
    """Check as ``check_meant`` does, for a topic that only other workers know. Raises: IsPartitioned, PlacementUnknown."""
    if ALL_PARTITIONS.of(request) is None and gateway.neighbours is not None and _asks_others(gateway, request):
        for status, answer in await gateway.neighbours.ask_each("GET", f"/v1/topics/{quote(name)}"):
            if status == 200:
                raise _not_meant(name, name, json.loads(answer)[PARTITIONS])


def _not_meant(name: str, whole: str, number: int) -> IsPartitioned:
    return IsPartitioned(f"{IsPartitioned.of(whole, number, name.removeprefix(whole))}, or all by ?{PARTITIONS}={number}")


def errands_for(gateway: Gateway, name: str) -> GroupErrands | None:
    """The object that asks all groups about a partitioned topic; None if the topic is not partitioned, or without groups."""
    return gateway.errands if gateway.errands is not None and is_whole(gateway, name) else None


def _asks_others(gateway: Gateway, request: Request) -> bool:
    by_worker = is_internal(request) and request.scope["state"].get(LOGIN_OF) == EVERY_TOKEN
    return gateway.neighbours is not None and not by_worker


async def ask_others(
    gateway: Gateway, request: Request, body: bytes = b"", *, whole: str | None = None
) -> list[dict[str, Any] | None]:
    """The answers of the other workers to the same request; None for a worker that has nothing of the topic; [] without
    other workers.

    Args:
        whole: the partitioned topic that all workers should know.

    Raises: PlacementUnknown when a worker does not answer or know the topic; then a change may be done in part.
    """
    if gateway.neighbours is None or not _asks_others(gateway, request):
        return []
    query = request.scope["query_string"].decode("ascii")
    target = request.scope["raw_path"].decode("ascii") + (f"?{query}" if query else "")
    try:
        found = await gateway.neighbours.ask_each(request.method, target, body)
        return [
            None if _has_nothing(whole, status, answer) else json.loads(answer) if answer else {} for status, answer in found
        ]
    except PlacementUnknown as error:
        raise _told(error, IN_PART) from error


def _told(error: PlacementUnknown, end: str) -> PlacementUnknown:
    """The error for a change of all partitions, with ``end``: what is known of the other workers."""
    said = str(error).removesuffix(AGAIN)
    return PlacementUnknown(said if said.endswith(end) else said + end)


def _has_nothing(whole: str | None, status: int, answer: bytes) -> bool:
    """Whether a worker has no part of the requested object. Raises: PlacementUnknown: it does not know the topic ``whole``."""
    if status != 404:
        return False
    code = json.loads(answer).get("code")
    lacks = code == Moved.code or (code == NoSuchTopic.code and whole is not None and not is_dead_letters(whole))
    if whole is not None and lacks:
        raise half_made(whole)
    return True


async def reach_others(gateway: Gateway, request: Request) -> None:
    """Before a change, wait until all workers that will get the request answer, as ``session.all_there`` does. All are asked
    anew, since one may have stopped a moment ago. ADR 0270. Raises: PlacementUnknown."""
    if gateway.neighbours is not None and _asks_others(gateway, request):
        try:
            await gateway.neighbours.reach_all(0.0)
        except PlacementUnknown as error:
            raise _told(error, NOTHING) from error


async def here_and_there(
    gateway: Gateway, request: Request, whole: str, here: Callable[[], Awaitable[dict[str, Any]]], body: bytes = b""
) -> list[dict[str, Any]]:
    """The answers of this worker and the others about a topic; workers that have nothing of it are left out. Raises: as
    ``here``, when no worker has any of it; PlacementUnknown, as ``ask_others``."""
    await reach_others(gateway, request)
    missing: RequestError | None = None
    answers: list[dict[str, Any]] = []
    try:
        answers.append(await here())
    except (NoSuchTopic, NoSuchConsumer) as error:
        missing = error
    answers += [answer for answer in await ask_others(gateway, request, body, whole=whole) if answer is not None]
    if not answers and missing is not None:
        raise missing
    return answers


async def describe(gateway: Gateway, request: Request, name: str) -> dict[str, Any]:
    """The JSON object of a partitioned topic with the partitions of all workers. Raises: NoSuchTopic;
    PlacementUnknown: a worker does not know it."""
    if gateway.errands is not None:
        return await gateway.errands.describe(name)
    found = [partition_operations.describe(gateway.broker, name)]
    if gateway.neighbours is not None and _asks_others(gateway, request):
        asked = await gateway.neighbours.ask_each("GET", f"/v1/topics/{quote(name)}")
        found += [json.loads(answer) for status, answer in asked if not _has_nothing(name, status, answer)]
    return described_whole(name, found[0][PARTITIONS], [part for one in found for part in one["parts"]])


async def described_after(description: Awaitable[T]) -> T:
    """Wait for the description of a topic or consumer after a change that all workers, or groups, have made. Raises:
    PlacementUnknown: one no longer answers; the text says that the change was made."""
    try:
        return await description
    except PlacementUnknown as error:
        raise PlacementUnknown(f"the change was made everywhere, and the answer cannot be: {error}") from error
