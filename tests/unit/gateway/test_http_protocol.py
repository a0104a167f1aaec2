"""What the gateway's protocols assume of uvicorn, whose internals it overrides (ADR 0078)."""

import hashlib
import inspect

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

DIGESTS: dict[type, str] = {
    HttpToolsProtocol: "18fdf324b11bf160",
    RequestResponseCycle: "e67d470d435dcc1c",
    FlowControl: "126debcdaa894c83",
    WebSocketsSansIOProtocol: "0bbcec98938432f7",
    uvicorn.Server: "06e799f7c58f8be6",
}
"""Of the source of uvicorn 0.54."""


def digest(part: type) -> str:
    return hashlib.sha256(inspect.getsource(part).encode()).hexdigest()[:16]


@pytest.mark.parametrize("part", DIGESTS)
def test_uvicorn_is_the_one_that_was_overridden(part: type) -> None:
    """Another digest: read what changed in ``part`` since 0.54, mend our subclasses, run tests/e2e/test_hostile_*.py and
    test_http*.py, then put the digest here and the version into pyproject.toml."""
    assert digest(part) == DIGESTS[part], f"{part.__module__}.{part.__name__} is not uvicorn 0.54's"
