"""Pages and their parts: the dashboard's files as they are in the package, and the API described for people.

Contract: gateway.md. Reads everything at start; nothing but what is in the package can be asked for.
"""

import hashlib
import json
import mimetypes
from collections.abc import Iterable, Iterator
from importlib import resources
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from toymq_py.gateway.openapi import STYLE, document, page
from toymq_py.gateway.operations import Operation
from toymq_py.gateway.problems import MethodNotAllowed, problem

INDEX = "index.html"
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class File:
    """One of them in memory, with a tag by which a browser knows that it has not changed."""

    def __init__(self, media: str, content: bytes) -> None:
        self._content = content
        self._headers = {
            "content-type": f"{media}; charset=utf-8" if media.startswith("text/") else media,
            "content-security-policy": CONTENT_SECURITY_POLICY,
            "referrer-policy": "no-referrer",
            "etag": f'"{hashlib.sha256(content).hexdigest()[:16]}"',
            "cache-control": "no-cache",  # kept, and asked for each time: a new version of the broker shows at once
        }

    async def __call__(self, request: Request) -> Response:
        if request.headers.get("if-none-match") == self._headers["etag"]:
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, headers=self._headers)


class Page(Route):
    """A file's route. It lets other methods through to what may have them (a queue's name, in the dialect ``mq``), and refuses
    those that nobody has as everything here is refused."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.methods is None or scope["method"] in self.methods:
            await super().handle(scope, receive, send)
        else:
            error = MethodNotAllowed(f"{scope['method']} is not for this path; GET is", "GET, HEAD")
            await problem(error)(scope, receive, send)


def routes(operations: Iterable[Operation]) -> list[Page]:
    """``/`` and what belongs to it, ``/docs``, ``/openapi.json``."""
    listed = list(operations)
    found = {
        "/openapi.json": File("application/json", json.dumps(document(listed)).encode()),
        "/docs": File("text/html", page(listed).encode()),
        "/docs/style.css": File("text/css", STYLE.encode()),
    }
    for name, file in _files(resources.files("toymq_py.gateway") / "static"):
        media = mimetypes.guess_type(name)[0] or "application/octet-stream"
        found["/" if name == INDEX else f"/static/{name}"] = File(media, file.read_bytes())
    return [Page(path, endpoint=file.__call__, methods=["GET"]) for path, file in found.items()]


def _files(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{prefix}{entry.name}/")
        elif not entry.name.startswith("."):
            yield prefix + entry.name, entry
