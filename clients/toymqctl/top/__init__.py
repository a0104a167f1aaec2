"""``toymqctl top``, a live screen. Contract: clients.md, "Command lines"."""

from toymqctl.top.command import top

__all__ = ["top"]
