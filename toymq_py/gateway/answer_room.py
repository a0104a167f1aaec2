"""A limit on unread answers: how many bytes of messages a connection may hold that its client has not read.

Contract: docs/security.md, "Limits"; ADR 0080. Every operation that answers with messages asks here before it takes them:
otherwise clients that do not read would fill the memory that all clients share.
"""

from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import Response, StreamingResponse

from toymq_py.errors import QueueFull
from toymq_py.gateway.bodies import seat_of
from toymq_py.gateway.waiters import Waiting

LOOK_S = 0.25
"""How often a stream without room looks whether there is some."""


def bytes_to_take(connection: HTTPConnection, wanted_bytes: int) -> int:
    """How many bytes of messages to take: at most ``floor_bytes`` while the token, the address or the broker holds too much."""
    seat = seat_of(connection)
    return wanted_bytes if seat is None else seat.bytes_to_take(wanted_bytes)


def hold(connection: HTTPConnection, size: int) -> None:
    """Count bytes of an answer against the limits until they are written; the HTTP protocol counts them afterwards.

    Raises: QueueFull; ClientDisconnect for a client that is gone, whose bytes no limit would count, or may be gone, whose
    bytes would count for long.
    """
    seat = seat_of(connection)
    if seat is not None:
        if seat.left or seat.takes_no_messages:
            raise ClientDisconnect
        seat.hold(size)


def grow(connection: HTTPConnection, size: int) -> None:
    """Count a part of an answer that describes the broker, without messages. Raises: QueueFull, ClientDisconnect."""
    seat = seat_of(connection)
    if seat is not None:
        if seat.left:
            raise ClientDisconnect
        seat.grow(size)


def check(connection: HTTPConnection, response: Response) -> None:
    """Check that a whole answer may be written: it counts until it is read. Raises: QueueFull."""
    seat = seat_of(connection)
    if seat is not None and not isinstance(response, StreamingResponse):
        seat.check_answer(len(response.body))


def charge(connection: HTTPConnection, size: int) -> QueueFull | None:
    """Count bytes that are held already, as ``hold``. Returns: the error if they exceed a limit, or None."""
    try:
        hold(connection, size)
    except QueueFull as error:
        return error
    except ClientDisconnect:
        pass  # what waits for it ends by itself
    return None


def has_room(connection: HTTPConnection, size: int) -> bool:
    """Whether a stream may write ``size`` bytes now."""
    seat = seat_of(connection)
    return seat is None or size <= seat.floor_bytes or not seat.over_its_share


async def wait_for_room(waiting: Waiting, connection: HTTPConnection) -> None:
    """Wait until the connection is no longer over its share, or the broker shuts down."""
    seat = seat_of(connection)
    while seat is not None and seat.over_its_share and not seat.left and not waiting.stopped:
        await waiting.sleep(LOOK_S)
