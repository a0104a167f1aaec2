"""What a subscribe found of its consumer on the disk."""

from enum import Enum


class Registration(Enum):
    """What a subscribe found of its consumer on the disk, and so what has to be stored before the reply (ADR 0009)."""

    KNOWN = "it was there before"
    NEW = "made at the first id: its SUB waits for the flush, but a disk that refuses it does not refuse the SUB"
    NEW_AHEAD = "made above the first id: without the flush a restart would bring back what it skips"
