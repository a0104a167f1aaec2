"""The rules that the models can leave out, each by a name, and the sentences of their traces."""

RECORD_RULES = {
    "ack_before_sync": "a follower acks what it has written, before its fdatasync",
    "ack_local": "OK after the leader's own sync only",
    "unclean": "a node outside the in-sync set may be elected",
    "stale_isr": "the candidate compares a copy of the in-sync set that it read before, not the revision in the transaction",
    "shrink_unfenced": "the in-sync set is written without comparing the epoch and the revision",
    "shrink_after_ack": "a slow follower is dropped in memory first, in etcd later",
    "no_epoch_check": "a follower takes a stream of an older epoch than it has promised",
    "forget_isr": "a new leader does not wait for the others in the in-sync set",
    "wipe_in_isr": "a follower empties its copy to take a new one while it is in the in-sync set",
    "expand_early": "a follower is put into the in-sync set before it has everything",
    "expand_count_late": "it is counted for OK only after the transaction that put it there",
    "no_truncate": "an old leader that comes back keeps its suffix and goes on behind it",
    "truncate_hw": "a follower comes back inside the in-sync set and cuts to a position it remembers",
    "same_identity": "an empty directory takes the place of a lost disk under the same identity",
    "expand_on_beat": "T3 adds a follower that was level a moment ago, not one that has synced all from before it was counted",
    "read_settles": "T3 without an answer: a read that shows the old revision is taken for a no",
    "timeout_is_no": "T3 without an answer is taken for a no",
    "timeout_is_yes": "T3 without an answer is taken for a yes",
    "join_unsettled": "a follower empties itself although a T3 that adds it may still happen",
    "t2_assumed": "T2 without an answer is taken for a yes, under the epoch that it would have had",
    "epoch_reused": "a leader that restarted goes on under the epoch that it has led, instead of T5 and T2",
    "promise_unsynced": "the promise of an epoch is not synced before the first operation of that epoch",
    "bye_unsettled": "a hand-over says BYE before every sync is settled",
    "answers_after_bye": "publishes held for a hand-over get OK behind BYE, without the followers",
    "force_while_led": "force does not compare that there is no leader",
    "force_from_outside": "force writes the in-sync set from outside, and the node that it names does not lead at once",
    "lease_kept": "a node that restarts does not revoke the lease under which its force may still happen",
    "join_unnamed": "a follower joins a leader of any epoch that it has not promised, not of the one that it read",
    "t1_adopts": "with an etcd that was wiped, a node begins anew by T1",
}
"""Of ``replication.py``."""

ASSUMPTIONS = {
    "etcd_restored": "etcd comes back from an old snapshot and goes on",
}
"""What the protocol trusts, and does not check; of ``replication.py``."""

FILE_RULES = {
    "join_in_isr": "the join does not begin with T3 without the follower",
    "s0_after_plan": "the stream to the follower begins behind the copy, not before the plan",
    "no_spool": "operations are applied when they come, while the copy is under way",
    "old_spool": "the spool of an earlier join is replayed",
    "rename_by_name": "a rename during the copy is sent as a rename, not as the content under its new name and an unlink",
    "ack_before_replay": "the follower acks COPIED without the spool",
    "copied_unsynced": "the follower acks COPIED before it has synced",
    "prefix_by_size": "the plan compares sizes, not contents",
    "no_aside_cut": "what the follower has beyond the leader's file stays where it is",
    "suffix_cut": "what the follower has beyond the leader's file is cut, not put aside",
    "aside_unsynced": "what is put aside is not synced before the file is cut",
    "aside_overwrites": "two joins in one epoch put aside to one name",
    "marker_missing": "replica.json does not say that a copy is under way",
}
"""Of ``join.py``."""

SENTENCES = {
    "expires": "etcd ends the lease of the leader",
    "late_t3": "etcd: a T3 without an answer happens now, in-sync set {s0}",
    "late_t2": "etcd: the T2 (or T1) of {n0} without an answer happens now, epoch {0[1]}",
    "late_t6": "etcd: the force of {n0} without an answer happens now",
    "restored": "etcd comes back from its first snapshot",
    "wiped": "etcd loses all its keys",
    "power": "{n0} loses power, keeps {0[1]} of {0[2]} records, restarts",
    "disk": "{n0} loses its disk, starts with an empty one",
    "syncs": "{n0} syncs its log",
    "fenced": "{n0} learns that epoch {0[1]} is over, steps down",
    "opens": "{n0} promises epoch {0[1]}, recovers, leads",
    "settles": "{n0} learns whether its force happened, or revokes its lease so that it cannot",
    "holds": "{n0} holds publishes for a hand-over",
    "calls_off": "{n0} calls the hand-over off",
    "bye": "{n0} says BYE",
    "t4": "{n0} deletes the leader key by T4, steps down",
    "t4_unanswered": "{n0} sends T4, has no answer, steps down",
    "appends": "{n0} (epoch {0[1]}) appends record {0[2]}",
    "drops": "{n0} drops {n1} by T3",
    "forgets": "{n0} drops {n1} in memory only",
    "uncounts": "{n0} no longer counts {n1}",
    "counts": "{n0} counts {n1} for OK",
    "adds": "{n0} adds {n1} by T3",
    "t3_unanswered": "{n0} sends T3 for the in-sync set {s2}, has no answer",
    "reads": "{n0} reads the in-sync set",
    "sees": "{n0} reads that {n1} is the leader of epoch {0[2]}",
    "follows": "{n0} follows {n1} from record {0[2]} on",
    "copies": "{n0} empties itself to copy {n1}",
    "copied": "{n0} has copied all",
    "writes": "{n0} writes record {0[1]}",
    "acks": "{n0} syncs and acks {0[1]} records",
    "elected": "{n0} is elected, epoch {0[1]}",
    "t2_unanswered": "{n0} sends T2 (or T1), has no answer",
    "finds_itself": "{n0} reads that it is the leader of epoch {0[1]}, which it has not promised yet",
    "resumes": "{n0} goes on as leader of epoch {0[1]}",
    "assumes": "{n0} assumes that it leads epoch {0[1]}",
    "forced": "the operator forces {n0}",
    "t6_unanswered": "the operator forces {n0}, without an answer",
}
"""An action's sentence: ``{0[i]}`` is its i-th value, ``{n0}`` the name of a copy, ``{s0}`` a set of copies."""


def sentence(action: tuple[str | int | tuple[int, ...], ...]) -> str:
    """Return the line of a trace for an action of ``replication.py``."""
    name, *values = action
    words = {}
    for index, value in enumerate(values):
        if isinstance(value, int):
            words[f"n{index}"] = "ABCDE"[value] if value < 5 else ""
            words[f"s{index}"] = "{" + ", ".join(name for bit, name in enumerate("ABCDE") if value >> bit & 1) + "}"
    return SENTENCES[str(name)].format(values, **words)
