"""Makes requests as programs written for TinyMQ do."""

import json
from typing import Any

from tests.support.http_rig import HttpRig

PAID = "filter_key=status&filter_val=paid"
"""Selects payloads that are JSON objects with this member."""


async def publish(rig: HttpRig, topic: str, *payloads: Any, **query: str) -> list[str]:
    """Publish messages, and return their ids; a payload that is not bytes is sent as JSON."""
    ids = []
    for payload in payloads:
        content = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        answer = await rig.ask("POST", f"/publish/{topic}", content=content, params=query)
        assert answer.status_code == 202, answer.text
        ids.append(answer.json()["id"])
    return ids


async def get(rig: HttpRig, path: str) -> tuple[int, Any]:
    answer = await rig.ask("GET", path)
    return answer.status_code, answer.json() if "json" in answer.headers.get("content-type", "") else None


async def post(rig: HttpRig, path: str, body: Any = None) -> tuple[int, Any]:
    answer = await rig.ask("POST", path, json=body)
    return answer.status_code, answer.json() if "json" in answer.headers["content-type"] else answer.text


def texts(messages: Any) -> list[str]:
    return [message["payload_text"] for message in messages]
