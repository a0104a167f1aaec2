"""The OpenAPI document and the page ``/docs``, made from the table of operations. Contract: gateway.md."""

import re
from collections import defaultdict
from collections.abc import Iterable
from html import escape
from typing import Any

from toymq_py.errors import (
    AuthFailed,
    AuthRequired,
    BadArgument,
    BadFraming,
    Forbidden,
    InternalError,
    LineTooLong,
    PlacementUnknown,
    RequestError,
    ShuttingDown,
    TooManyConnections,
)
from toymq_py.gateway.access import COOKIE
from toymq_py.gateway.operations import Operation
from toymq_py.gateway.problems import STATUS, TooSlow, UnknownCoding
from toymq_py.version import __version__

COMMON_ERRORS: tuple[type[RequestError], ...] = (
    BadArgument, BadFraming, Forbidden, LineTooLong, PlacementUnknown, TooManyConnections, TooSlow, ShuttingDown, InternalError,
)  # fmt: skip
"""Errors of every operation."""
REFUSALS = {"application/problem+json": {"$ref": "#/components/schemas/Problem"}, "text/plain": {"type": "string"}}
PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "code", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"enum": sorted(STATUS)},
        "detail": {"type": "string"},
    },
}


def document(operations: Iterable[Operation]) -> dict[str, Any]:
    """Make the OpenAPI 3.1 document."""
    paths: dict[str, dict[str, Any]] = defaultdict(dict)
    for operation in operations:
        paths[operation.path.replace(":slashes}", "}")][operation.method.lower()] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "toymq",
            "version": __version__,
            "description": "2xx means on stable storage. Errors are problems with the wire's codes (docs/http.md).",
        },
        "paths": dict(paths),
        "components": {
            "schemas": {"Problem": PROBLEM},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": COOKIE},
            },
        },
    }


def _describe(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.text,
        "parameters": [
            {"name": p.name, "in": p.where, "description": p.text, "required": p.required, "schema": dict(p.schema)}
            for p in operation.parameters
        ],
        "responses": _responses(operation),
        "security": [{}] if operation.needs is None else [{"bearer": []}, {"cookie": []}, {}],
    }
    if operation.body is not None:
        content = {media: {"schema": dict(schema)} for media, schema in operation.body.content.items()}
        described["requestBody"] = {"description": operation.body.text, "content": content}
    return described


def _responses(operation: Operation) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, answer in (operation.answers or {}).items():
        responses[str(status)] = {"description": answer.text}
        if answer.schema is not None:
            responses[str(status)]["content"] = {answer.media: {"schema": dict(answer.schema)}}
    codes: dict[int, list[str]] = defaultdict(list)
    guarded = (AuthRequired, AuthFailed) if operation.needs is not None else ()
    coded = (UnknownCoding,) if operation.body is not None else ()
    for error in sorted({*operation.errors, *COMMON_ERRORS, *guarded, *coded}, key=lambda cls: cls.code):
        codes[STATUS[error.code]].append(error.code)
    for status, names in sorted(codes.items()):
        content = {media: {"schema": REFUSALS.get(media, {})} for media in operation.refusals}
        known = responses.setdefault(str(status), {"description": ", ".join(names), "content": content})
        known["content"] = {**known.get("content", {}), **content}
    return responses


def page(operations: Iterable[Operation]) -> str:
    """The document as one HTML page, without scripts and without requests to other sites."""
    sections = "".join(map(_section, operations))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        '<title>toymq HTTP API</title><link rel="stylesheet" href="/docs/style.css">'
        '<link rel="icon" href="/static/icon.svg" type="image/svg+xml"></head><body><main>'
        f'<h1>toymq {escape(__version__)}: HTTP API</h1><p>2xx means on stable storage. Errors are '
        '<code>application/problem+json</code> with a <code>code</code>. The same for programs: '
        f'<a href="/openapi.json">/openapi.json</a>. The broker itself: <a href="/">the dashboard</a>.</p>{sections}'
        '</main></body></html>'
    )  # fmt: skip


def _section(operation: Operation) -> str:
    described = _describe(operation)
    rows = [
        (parameter["name"], parameter["in"], parameter["description"] + (" Required." if parameter["required"] else ""))
        for parameter in described["parameters"]
    ]
    if operation.body is not None:
        rows.append(("body", ", ".join(operation.body.content), operation.body.text))
    answers = [(status, answer["description"], "") for status, answer in described["responses"].items()]
    return (
        f'<section id="{escape(operation.name)}"><h2><b>{operation.method}</b> <code>{escape(operation.path)}</code></h2>'
        f"<p>{_prose(operation.text)}</p>{_table(rows)}{_table(answers)}</section>"
    )


def _prose(text: str) -> str:
    """Text with code between backticks, as HTML."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _table(rows: list[tuple[str, str, str]]) -> str:
    if not rows:
        return ""
    lines = "".join(f"<tr><th scope=\"row\">{escape(a)}</th><td>{_prose(b)}</td><td>{_prose(c)}</td></tr>" for a, b, c in rows)
    return f"<table>{lines}</table>"


STYLE = """\
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
main { max-width: 60rem; margin: 0 auto; padding: 1rem }
h2 { font-size: 1rem; margin: 2rem 0 0; border-top: 1px solid GrayText; padding-top: 1rem; overflow-wrap: anywhere }
table { border-collapse: collapse; margin: .5rem 0 }
th, td { text-align: left; vertical-align: top; padding: .1rem 1rem .1rem 0; font-weight: normal }
th { font-family: ui-monospace, monospace; white-space: nowrap }
@media (max-width: 40rem) { tr, th, td { display: block } td { padding-left: 1rem } tr { margin-bottom: .4rem } }
"""
