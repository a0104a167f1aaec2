"""The audit trail: a line for each change, each removal and each refusal, with token and address.

Contract: docs/security.md, "The audit trail"; ADR 0059. Knows no transport. A client's text is
escaped and cut, so that it cannot begin a line or a field.
"""

import json
import logging
import re
from collections.abc import Mapping
from typing import Literal

from toymq_py.errors import Moved

logger = logging.getLogger("toymq_py.audit")
logger.addHandler(logging.NullHandler())  # a program that embeds a broker and sets up no log has no trail on its stderr

REFUSED = frozenset(("AUTH_REQUIRED", "AUTH_FAILED", "FORBIDDEN"))
"""Refusals with these codes are always recorded."""
OK = "OK"
VALUE_CHARS_MAX = 200
_PLAIN = re.compile(r"[!#-<>-~]+\Z")
"""A value that needs no quotes: printable ASCII without space, quote and ``=``."""

Via = Literal["tcp", "http", "websocket", "amqp", "passed"]
"""``passed``: another worker, or another group's leader, passed the command on for its client."""


def record(
    action: str, result: str, *, token: str | None, address: str | None, via: Via, about: Mapping[str, str] | None = None
) -> None:
    """Write one line of the audit trail.

    Args:
        action: the command's verb or the operation's name.
        result: ``OK``, or the code of the error. A redirect is not recorded: the worker that it leads to writes the line.
        token: the token's name, None for none.
        address: the client's, without its port, so that repeats become one counted line.
        about: names of the topic, consumer or webhook, by kind.
    """
    if result == Moved.code:
        return
    level = logging.INFO if result == OK else logging.WARNING
    if not logger.isEnabledFor(level):
        return
    fields = {"action": action, **(about or {}), "token": token, "address": address, "via": via, "result": result}
    fields = {name: value if value is None else value[:VALUE_CHARS_MAX] for name, value in fields.items()}
    line = " ".join(f"{name}={_shown(value)}" for name, value in fields.items())
    logger.log(level, "%s", line, extra={"audit": fields, "every": result == OK})


def _shown(value: str | None) -> str:
    if value is None:
        return "-"
    return value if _PLAIN.match(value) and value != "-" else json.dumps(value)
