"""Remedies of the errors that a broker answers: by code, or by code and cause."""

from toymq_py.errors import RequestError

ADVICE = {
    "AUTH_FAILED": "set another token with TOYMQ_TOKEN or --token-file (`toymqctl token create` makes one)",
    "AUTH_REQUIRED": "set a token with TOYMQ_TOKEN or --token-file",
    "DISK_LOW": "make room on the broker's disk; publishing resumes by itself",
    "MODE_CONFLICT": "use the --mode of its current subscribers, or another --consumer",
    "MOVED": "give the address that it names, for HTTP with --http-url. If it was that one, the workers, or groups, do not "
    "agree: compare `CLUSTER` of each",
    "NO_SUCH_CONSUMER": "`toymqctl consumers TOPIC` lists its consumers",
    "NOT_ENOUGH_REPLICAS": "start the nodes that are missing; publishing resumes by itself once they are in sync",
    "NOT_LEADER": "connect to the node that leads; the answer names it, unless none leads yet",
    "TIER_AWAY": "look at the bucket of --tier and at the broker's log; consumers wait for it, nothing is skipped",
    "TIER_BEHIND": "look at the bucket of --tier and at the broker's log; publishing resumes by itself",
    "UNKNOWN_COMMAND": "if `toymqctl doctor` says that the broker is of another version, use the toymqctl of that one",
}
"""Remedies by code of protocol.md, for codes with one cause; other errors have theirs in the text."""

_MORE_MEMORY = "let clients read their replies and finish their publishes, or start the broker with a larger"
_MORE_CONNECTIONS = "close some, or start the broker with a larger --max-connections"
_MORE_CONSUMERS = "`toymqctl forget` unused consumers, or start the broker with a larger --max-consumers"
_MORE_TOPICS = "`toymqctl delete` unused topics, or start the broker with a larger --max-topics"
_AS_ADMIN = "use a token of an admin, or start the broker with a smaller --admin-reserve"
_LOOK_AND_RESTART = "look at the broker's log and disk, then restart it"
ADVICE_OF_CAUSES = {
    "DISK_FULL": {
        "no space left": "make room on the broker's disk; publishing resumes by itself",
        "no file descriptor left": "let the broker have more open files (`ulimit -n`, LimitNOFILE= of systemd), and restart it",
    },
    "NO_SUCH_TOPIC": {"no topic": "`toymqctl topics` lists the topics"},
    "PAYLOAD_TOO_LARGE": {
        "--max-payload": "publish it in parts, or start the broker with a larger --max-payload",
        "backlog_max_bytes": "publish it in parts, or raise the limit with `toymqctl config`",
    },
    "QUEUE_FULL": {
        "the backlog of": "its consumers are behind (`toymqctl consumers TOPIC`); or raise the limit with `toymqctl config`",
        "--max-held-bytes": f"{_MORE_MEMORY} --max-held-bytes",
        "--memory-max": f"{_MORE_MEMORY} --memory-max",
    },
    "SHUTTING_DOWN": {"shutting down": "the broker is being stopped; try again when it is back"},
    "STORAGE_FAILED": {
        "the disk failed": _LOOK_AND_RESTART,
        "until a restart": f"{_LOOK_AND_RESTART}; reading goes on meanwhile",
        "could not be opened": _LOOK_AND_RESTART,
        "the broker ends": "restore the directory from its backup, or start the broker with another one",
    },
    "TOO_MANY_CONNECTIONS": {
        "(--max-connections)": _MORE_CONNECTIONS,
        "(--address-percent)": f"{_MORE_CONNECTIONS} or --address-percent",
        "(--token-percent)": f"{_MORE_CONNECTIONS} or --token-percent",
        "(--admin-reserve)": _AS_ADMIN,
        "to make room": _MORE_CONNECTIONS,
    },
    "TOO_MANY_CONSUMERS": {
        "(--max-consumers)": _MORE_CONSUMERS,
        "(--token-percent": f"{_MORE_CONSUMERS} or --token-percent",
        "(--admin-reserve)": _AS_ADMIN,
        "(--memory-max)": f"{_MORE_MEMORY} --memory-max",
    },
    "TOO_MANY_TOPICS": {
        "(--max-topics)": _MORE_TOPICS,
        "(--token-percent": f"{_MORE_TOPICS} or --token-percent",
        "(--admin-reserve)": _AS_ADMIN,
    },
}  # fmt: skip
"""Remedies by code, and by the part of its text that shows the cause: the first that fits. Other texts of these codes name
their remedy, or there is none."""


def remedy_of(error: RequestError) -> str:
    """Return the remedy; "" if none is known or the text contains it."""
    causes, text = ADVICE_OF_CAUSES.get(error.code, {}), str(error)
    return next((advice for sign, advice in causes.items() if sign in text), ADVICE.get(error.code, ""))
