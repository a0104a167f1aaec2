"""Every command that has a topic, as sent for a partitioned topic: for all partitions, or for one."""

from typing import get_args

from toymq_py.protocol import Command, commands

ONE_PARTITION = {commands.Ack, commands.Nack, commands.Touch, commands.SettlementRun, commands.Fetch, commands.Offsets}
"""They are about ids, and each partition has its own: for a whole topic the reply is PARTITIONED."""
DIVIDED = {commands.Publish}
"""The handler makes one of it for each partition."""
TEXTS: dict[type, str] = {
    commands.Create: "CREATE {}\n",
    commands.Publish: "PUB {} - 1\nx\n",
    commands.Subscribe: "SUB {} c\n",
    commands.Held: "HELD {} c\n",
    commands.Unsubscribe: "UNSUB {} c\n",
    commands.Pull: "PULL {} c 1\n",
    commands.Ack: "ACK {} c 0\n",
    commands.Nack: "NACK {} c 0\n",
    commands.Touch: "TOUCH {} c 0\n",
    commands.SettlementRun: "ACK {0} c 0\nACK {0} c 1\n",
    commands.Fetch: "FETCH {} 0 1\n",
    commands.Offsets: "OFFSETS {}\n",
    commands.Describe: "DESCRIBE {}\n",
    commands.Config: "CONFIG {}\n",
    commands.Purge: "PURGE {}\n",
    commands.Seek: "SEEK {} c latest\n",
    commands.Forget: "FORGET {} c\n",
    commands.Redrive: "REDRIVE {}.dlq\n",
    commands.Delete: "DELETE {}\n",
}
"""By the kind of the command, with room for the topic; in an order in which each one finds what it needs."""


def kinds_with_a_topic() -> set[type]:
    """Return the types of all commands that have a topic. ``Topics`` has a pattern, which may match no topic."""
    return {kind for kind in get_args(Command) if hasattr(kind, "topic")}
