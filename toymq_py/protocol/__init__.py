"""Both ends of the wire, without I/O: bytes in, events out. Contract: protocol.md; ADR 0006."""

from toymq_py.protocol.client_connection import ClientConnection
from toymq_py.protocol.commands import (
    Ack,
    Cluster,
    Command,
    Config,
    Create,
    Delete,
    Describe,
    Fetch,
    Forget,
    Hello,
    Nack,
    Offsets,
    Pause,
    Ping,
    Publish,
    Pull,
    Purge,
    Quit,
    Redrive,
    Rejected,
    Resume,
    Seek,
    SettlementRun,
    Stats,
    Subscribe,
    Topics,
    Touch,
    Unsubscribe,
)
from toymq_py.protocol.header_lines import encode_command, publish_head, publish_key, publish_options, publish_sequence
from toymq_py.protocol.replies import (
    BatchReply,
    ClosedPush,
    DupReply,
    ErrReply,
    Frames,
    HelloReply,
    JsonReply,
    MessagePush,
    OffsetsReply,
    OkReply,
    PongReply,
    Reply,
    encode_batch_header,
    encode_closed,
    encode_dup,
    encode_error,
    encode_hello,
    encode_json,
    encode_messages,
    encode_offsets,
    encode_ok,
    encode_ok_run,
    encode_pong,
)
from toymq_py.protocol.reply_frames import ReplyFrames, first_word
from toymq_py.protocol.server_connection import ServerConnection
from toymq_py.protocol.transcript import command_lines, reply_line

__all__ = [
    "Ack", "BatchReply", "ClientConnection", "ClosedPush", "Cluster", "Command", "Config", "Create", "Delete", "Describe",
    "DupReply", "ErrReply", "Fetch", "Forget", "Frames", "Hello", "HelloReply", "JsonReply", "MessagePush", "Nack",
    "Offsets", "OffsetsReply", "OkReply", "Pause", "Ping", "PongReply", "Publish", "Pull", "Purge", "Quit", "Redrive",
    "Rejected", "Reply", "ReplyFrames", "Resume", "Seek", "ServerConnection", "SettlementRun", "Stats", "Subscribe",
    "Topics", "Touch", "Unsubscribe", "command_lines", "encode_batch_header", "encode_closed", "encode_command",
    "encode_dup", "encode_error", "encode_hello", "encode_json", "encode_messages", "encode_offsets", "encode_ok",
    "encode_ok_run", "encode_pong", "first_word", "publish_head", "publish_key", "publish_options", "publish_sequence",
    "reply_line",
]  # fmt: skip
