"""Expected answers to requests in the dialect ``tinymq``, with their status."""

from typing import Any

from tests.support.http_rig import HttpRig

MADE_HERE = {"max_attempts": 3, "backlog_max_messages": 100_000}


async def publish(rig: HttpRig, topic: str, body: bytes, **more: Any) -> tuple[int, Any]:
    answer = await rig.ask("POST", f"/publish/{topic}", content=body, **more)
    return answer.status_code, answer.json() if "json" in answer.headers["content-type"] else answer.text


async def consume(rig: HttpRig, topic: str, query: str = "") -> Any:
    answer = await rig.ask("GET", f"/consume/{topic}?{query}")
    assert answer.status_code in (200, 204), answer.text
    return answer.json() if answer.status_code == 200 else None


async def rig_post(rig: HttpRig, path: str, body: dict[str, Any]) -> int:
    return (await rig.ask("POST", f"/api/queues/{path}", json=body)).status_code
