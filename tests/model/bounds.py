"""How far each search goes: the bounds of ``make test`` and ``make model``, and for each rule the bounds that find its
absence."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of ``replication.py``. ``begin``: with empty copies and no key in etcd, or with a leader that the others
    follow."""

    nodes: int = 2
    records: int = 2
    epochs: int = 3
    faults: int = 2
    unknown: int = 0
    handovers: int = 0
    forces: int = 0
    wipes: int = 0
    begin: bool = False


@dataclass(frozen=True, slots=True)
class JoinBounds:
    """Bounds of ``join.py``: operations of the leader, power cuts and lost links."""

    operations: int = 2
    breaks: int = 0


SHORT = (
    Bounds(epochs=2, faults=1),
    Bounds(records=1, faults=1, unknown=1),
    Bounds(records=1, faults=1, handovers=1),
    Bounds(records=1, faults=1, forces=1),
    Bounds(records=1, faults=1, wipes=1, begin=True),
    JoinBounds(2, 0),
    JoinBounds(1, 1),
)
"""Of ``make test``."""
LONG = (
    Bounds(faults=1),
    Bounds(records=1, faults=1, forces=1, unknown=1),
    Bounds(),
    Bounds(faults=1, unknown=1),
    Bounds(records=3, faults=1),
    Bounds(unknown=2),
    Bounds(handovers=1, unknown=1),
    Bounds(forces=1, unknown=1, faults=1),
    Bounds(records=1, handovers=1, forces=1, unknown=1),
    Bounds(records=1, wipes=1, unknown=1, begin=True),
    Bounds(nodes=3, records=1, epochs=2, faults=1),
    Bounds(nodes=3, records=1, epochs=2, faults=1, unknown=1),
    Bounds(nodes=3, records=1, faults=1),
    Bounds(nodes=3, records=1, epochs=2, faults=1, handovers=1),
    Bounds(nodes=3, records=1, faults=1, forces=1),
    JoinBounds(2, 1),
    JoinBounds(3, 0),
)
"""Of ``make model`` and ``make torture``."""
FAR = Bounds(nodes=3, records=6, epochs=9, faults=6, unknown=4, handovers=2)
"""Of random walks: too far to exhaust."""
FAR_FORCED = Bounds(nodes=3, records=6, epochs=9, faults=4, unknown=3, handovers=1, forces=1)

CRASH = Bounds(faults=1)
NO_ANSWER = Bounds(faults=1, unknown=1)
FORCE = Bounds(records=1, faults=1, forces=1)
FINDS_RECORD_RULE = {
    "ack_before_sync": CRASH, "ack_local": CRASH, "unclean": CRASH, "stale_isr": NO_ANSWER, "shrink_unfenced": CRASH,
    "shrink_after_ack": CRASH, "no_epoch_check": CRASH, "forget_isr": CRASH, "wipe_in_isr": CRASH, "expand_early": CRASH,
    "expand_count_late": CRASH, "no_truncate": CRASH, "truncate_hw": CRASH, "same_identity": CRASH,
    "expand_on_beat": CRASH, "read_settles": NO_ANSWER, "timeout_is_no": NO_ANSWER, "timeout_is_yes": NO_ANSWER,
    "join_unsettled": NO_ANSWER, "t2_assumed": NO_ANSWER, "epoch_reused": CRASH, "promise_unsynced": CRASH,
    "bye_unsettled": Bounds(faults=0, handovers=1), "answers_after_bye": Bounds(faults=0, handovers=1),
    "force_while_led": FORCE, "force_from_outside": FORCE, "join_unnamed": FORCE,
    "lease_kept": Bounds(records=0, faults=1, forces=1, unknown=1),
    "t1_adopts": Bounds(faults=0, wipes=1), "etcd_restored": Bounds(faults=0, wipes=1),
}  # fmt: skip
"""For each rule and assumption a form that finds a violation without it."""
FINDS_FILE_RULE = {
    "join_in_isr": JoinBounds(0, 0), "s0_after_plan": JoinBounds(1, 0), "no_spool": JoinBounds(2, 0),
    "old_spool": JoinBounds(2, 1), "rename_by_name": JoinBounds(1, 0), "ack_before_replay": JoinBounds(1, 0),
    "copied_unsynced": JoinBounds(0, 1), "prefix_by_size": JoinBounds(0, 0), "no_aside_cut": JoinBounds(0, 0),
    "suffix_cut": JoinBounds(0, 1), "aside_unsynced": JoinBounds(0, 1), "aside_overwrites": JoinBounds(1, 1),
    "marker_missing": JoinBounds(0, 0),
}  # fmt: skip
