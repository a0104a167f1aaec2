"""Errors as problems: status and headers that tell a client what to do next."""

import json

import pytest

from toymq_py.errors import AuthRequired, BadName, DiskLow, QueueFull, RequestError
from toymq_py.gateway.problems import (
    MethodNotAllowed,
    TargetTooLong,
    UnknownCoding,
    UnsupportedVersion,
    UpgradeRequired,
    problem,
)


@pytest.mark.parametrize(
    ("error", "status", "headers"),
    [
        (BadName("x"), 422, {}),
        (QueueFull("x"), 429, {"retry-after": "1"}),
        (DiskLow("x"), 507, {"retry-after": "10"}),
        (AuthRequired("x"), 401, {"www-authenticate": "Bearer"}),
        (MethodNotAllowed("x", "GET, PUT"), 405, {"allow": "GET, PUT"}),
        (UnsupportedVersion("x"), 505, {}),
        (TargetTooLong("x"), 414, {}),
        (UpgradeRequired("x"), 426, {"upgrade": "websocket", "sec-websocket-version": "13"}),
        (UnknownCoding("x"), 415, {"accept-encoding": "identity"}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, RequestError) else "",
)
def test_an_error_has_its_status_and_what_the_client_needs(error: RequestError, status: int, headers: dict[str, str]) -> None:
    answer = problem(error)
    found = dict(answer.headers)
    assert answer.status_code == status
    assert headers.items() <= found.items()
    assert ("retry-after" in found) == ("retry-after" in headers)
    assert ("connection" in found) == ("connection" in headers or isinstance(error, UpgradeRequired))
    described = json.loads(bytes(answer.body))
    assert (described["status"], described["code"], described["detail"]) == (status, error.code, "x")


def test_a_dialect_may_give_another_status_and_wait() -> None:
    answer = problem(BadName("x"), status=400, retry_after_s=7)
    assert (answer.status_code, answer.headers["retry-after"]) == (400, "7")
