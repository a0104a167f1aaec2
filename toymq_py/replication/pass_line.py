"""The line by which a node asks the leader of another group to serve a client's commands. Pure. ADR 0190.

    > PASS 1 cluster=<name> group=<g> [auth=<token, percent-encoded>] [rights=all]      over a connection to its --replicate
    < PASSED                    then the protocol of clients, HELLO first        or    ERR <CODE> <text>, and the end

The token and TLS are those of the nodes; the client's own token is in its HELLO, and is checked by the leader. With
``rights=all`` there is no client: the node asks on its own behalf, and has checked the rights already (ADR 0199).
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from toymq_py.errors import BadOperation

PASS: Final = b"PASS "
"""The beginning of the line: a follower's lines begin otherwise."""
PASSED: Final = b"PASSED\n"
VERSION: Final = 1

_LINE = re.compile(
    r"PASS ([0-9]{1,4}) cluster=([A-Za-z0-9_-]{1,63}) group=([A-Za-z0-9-]{1,32})(?: auth=([A-Za-z0-9._~%-]{1,800}))?"
    r"( rights=all)?\n"
)


@dataclass(frozen=True, slots=True)
class Pass:
    """A node's request to serve a client's commands. ``token``: the secret of the nodes; kept out of ``repr``."""

    cluster: str
    group: str
    token: str | None
    version: int = VERSION
    trusted: bool = False

    def __repr__(self) -> str:
        return f"Pass({self.cluster}, {self.group}, {self.version})"


def encode(asked: Pass) -> bytes:
    auth = "" if asked.token is None else f" auth={quote(asked.token, safe='')}"
    rights = " rights=all" if asked.trusted else ""
    return f"PASS {asked.version} cluster={asked.cluster} group={asked.group}{auth}{rights}\n".encode("ascii")


def decode(line: bytes) -> Pass:
    """Decode the line PASS. Raises: BadOperation."""
    match = _LINE.fullmatch(line.decode("latin-1"))
    if match is None:
        raise BadOperation(f"an invalid line: {line[:60]!a}")
    version, cluster, group, token, rights = match.groups()
    return Pass(cluster, group, None if token is None else unquote(token), int(version), rights is not None)
