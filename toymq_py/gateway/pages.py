"""Static pages: the dashboard's files, ``/docs`` and ``/openapi.json``.

Contract: gateway.md. All files are read from the package at start; no path leads to another file. Pages that are generated from
the table of operations are made at their first request, which saves 10 ms at start.
"""

import hashlib
import json
import mimetypes
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property, partial
from importlib import resources
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from toymq_py.errors import QueueFull
from toymq_py.gateway import answer_room
from toymq_py.gateway.openapi import STYLE, document, page
from toymq_py.gateway.operations import Operation
from toymq_py.gateway.problems import MethodNotAllowed, problem

INDEX = "index.html"
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class File:
    """One file in memory, with an ETag."""

    def __init__(self, media: str, make: Callable[[], bytes]) -> None:
        """``make``: returns the content; called once, at the first request."""
        self._media = media
        self._make = make

    @cached_property
    def _content(self) -> bytes:
        return self._make()

    @cached_property
    def _headers(self) -> dict[str, str]:
        return {
            "content-type": f"{self._media}; charset=utf-8" if self._media.startswith("text/") else self._media,
            "content-security-policy": CONTENT_SECURITY_POLICY,
            "referrer-policy": "no-referrer",
            "etag": f'"{hashlib.sha256(self._content).hexdigest()[:16]}"',
            "cache-control": "no-cache",  # stored, and revalidated each time: a new version of the broker shows at once
        }

    async def __call__(self, request: Request) -> Response:
        if request.headers.get("if-none-match") == self._headers["etag"]:
            return Response(status_code=304, headers=self._headers)
        response = Response(self._content, headers=self._headers)
        try:
            answer_room.check(request, response)
        except QueueFull as error:
            return problem(error)
        return response


class Page(Route):
    """A file's route, for GET and HEAD. Other methods may belong to another route with the same path; else they get 405."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.methods is None or scope["method"] in self.methods:
            await super().handle(scope, receive, send)
        else:
            error = MethodNotAllowed(f"{scope['method']} is not supported on this path: use GET", "GET, HEAD")
            await problem(error)(scope, receive, send)


def routes(operations: Iterable[Operation]) -> list[Page]:
    """``/`` and its files, ``/docs``, ``/openapi.json``."""
    listed = list(operations)
    found = {
        "/openapi.json": File("application/json", lambda: json.dumps(document(listed)).encode()),
        "/docs": File("text/html", lambda: page(listed).encode()),
        "/docs/style.css": File("text/css", STYLE.encode),
    }
    for name, content in _static().items():
        media = mimetypes.guess_type(name)[0] or "application/octet-stream"
        found["/" if name == INDEX else f"/static/{name}"] = File(media, partial(bytes, content))
    return [Page(path, endpoint=file.__call__, methods=["GET"]) for path, file in found.items()]


@cache
def _static() -> dict[str, bytes]:
    """The static files, read once in a process, also by tests that begin a gateway each."""
    return {name: file.read_bytes() for name, file in _files(resources.files("toymq_py.gateway") / "static")}


def _files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{prefix}{entry.name}/")
        elif not entry.name.startswith("."):
            yield prefix + entry.name, entry
