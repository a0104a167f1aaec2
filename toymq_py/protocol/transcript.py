"""Commands and replies as lines of text, for the wire debug log of both ends.

Shows the length of a body and not its bytes, and no token, not even one in a refused line.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

from toymq_py.protocol import replies
from toymq_py.protocol.commands import Command, Hello, Publish, Rejected, SettlementRun
from toymq_py.protocol.header_lines import encode_command
from toymq_py.protocol.replies import Reply

_QUOTE_THE_LINE = frozenset(("BAD_ARGUMENT", "BAD_FRAMING", "LINE_TOO_LONG", "UNKNOWN_COMMAND"))
"""Codes whose text may repeat a token that was sent in the wrong place."""
MASK = "***"


def command_lines(command: Command) -> Iterator[str]:
    """The header line of a command; for a run, one line for each of its commands."""
    if isinstance(command, Publish):
        for row, (key, body) in enumerate(zip(command.keys, command.bodies, strict=True)):
            words = {"hdr": command.hdr or None}
            for name, column in (("delay", command.delays_ms), ("ttl", command.ttls_ms), ("seq", command.seqs)):
                if column is not None:
                    words[name] = column[row]
            options = "".join(f" {name}={value}" for name, value in words.items() if value is not None)
            yield f"PUB {command.topic} {_key(key)} {len(body)}{options}"
    elif isinstance(command, SettlementRun):
        yield from map(_line, command.each())
    elif isinstance(command, Rejected):
        yield f"(refused: {command.error.code})"
    elif isinstance(command, Hello):
        yield _line(replace(command, auth=MASK if command.auth is not None else None))
    else:
        yield _line(command)


def _line(command: Command) -> str:
    return _text(encode_command(command))


def _text(line: bytes) -> str:
    return line.decode("ascii").rstrip("\n")


def _key(key: bytes) -> str:
    return key.decode("ascii", "backslashreplace") or "-"


def reply_line(reply: Reply) -> str:
    """The header line of a reply or push."""
    match reply:
        case replies.OkReply(value):
            return _text(replies.encode_ok(value))
        case replies.DupReply(msg_id):
            return _text(replies.encode_dup(msg_id))
        case replies.PongReply():
            return _text(replies.encode_pong())
        case replies.HelloReply():
            return _text(replies.encode_hello(reply))
        case replies.JsonReply(body):
            return f"JSON {len(body)}"
        case replies.BatchReply(topic, count, next_id, frames):
            return _text(replies.encode_batch_header(topic, count, next_id, len(frames)))
        case replies.OffsetsReply(topic, first_id, next_id, incarnation):
            return _text(replies.encode_offsets(topic, first_id, next_id, incarnation))
        case replies.ErrReply(code, text):
            return f"ERR {code}" if code in _QUOTE_THE_LINE else f"ERR {code} {text}"
        case replies.MessagePush():
            header = f" hdr={len(reply.headers)}" if reply.headers else ""
            length = len(reply.headers) + len(reply.payload)
            return f"MSG {reply.topic} {reply.msg_id} {reply.attempt} {reply.ts_ns} {_key(reply.key)} {length}{header}"
        case replies.ClosedPush(topic, consumer, code):
            return _text(replies.encode_closed(topic, consumer, code))
        case _:
            assert_never(reply)
