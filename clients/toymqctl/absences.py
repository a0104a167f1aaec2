"""Checks of ``toymqctl doctor`` for workers and groups that do not answer, and notes on what the other checks lack then."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from toymqctl.findings import Finding, noted
from toymqctl.places import unserved, workers_of

OF_ALL = frozenset(("disk", "fsync", "tier", "limits", "topics", "lag", "retries", "dead letters"))
"""Checks that look at all places, and are ok where none has trouble."""
_SAFE = "what had OK is kept, and it is started again"


def examine_groups(cluster: Mapping[str, Any]) -> Iterator[Finding]:
    """Check that each group of a cluster has a leader."""
    for name, group in cluster.get("groups", {}).items():
        if name in unserved(cluster):
            found = f"{group['leader']} leads without --group: no new topic is placed, and other groups do not list its topics"
            yield Finding(f"group {name}", "warn", found, f"restart its nodes with --group {name}, followers first")
        elif group["leader"] is not None:
            yield Finding(f"group {name}", "ok", f"{group['leader']} leads")
        elif not group["placed"]:
            yield Finding(f"group {name}", "warn", "has had no leader yet, and gets no topic before", "start its nodes")
        else:
            nodes = f" Its nodes are, or were, {', '.join(group['nodes'])}" if group["nodes"] else ""
            advice = f"start its nodes: `toymqctl cluster --group {name}` says what is waited for"
            yield Finding(f"group {name}", "FAIL", f"no leader: its topics are away.{nodes}", advice)


def examine_away(away: Sequence[Mapping[str, str]], cluster: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each worker or group that does not answer.

    Args:
        away: the workers or groups that do not answer, ``away`` in an answer to STATS.
        cluster: the answer to CLUSTER.
    """
    for one in away:
        kind, _, name = one["place"].partition(" ")
        found = f"{one['why']}: its topics are away, and not checked"
        if kind == "worker":
            yield Finding(one["place"], "FAIL", found, stands_still(cluster, int(name)))
        elif cluster.get("groups", {}).get(name, {}).get("leader") is not None:  # else it has a line already
            yield Finding(f"figures of {one['place']}", "FAIL", found, f"`toymqctl cluster --group {name}` shows its nodes")


def stands_still(cluster: Mapping[str, Any], worker: int) -> str:
    """Return the advice for a worker that does not answer."""
    pids = cluster.get("pids")
    if pids is None:  # an older broker
        return f"see its log. `kill -9` ends a worker process that stands still: {_SAFE}"
    if not (pid := pids[worker]):
        return "it has ended, and is started again: see the broker's log for why"
    return f"see the broker's log. If process {pid} stands still, `kill -9 {pid}` on the broker's machine ends it: {_SAFE}"


def without(findings: Iterable[Finding], away: Sequence[Mapping[str, str]]) -> Iterator[Finding]:
    """For checks that cover all workers or groups: add to their findings which of these could not be checked."""
    missing = f" (without {', '.join(one['place'] for one in away)})" if away else ""
    return noted(findings, OF_ALL, missing)


def advice_without_figures(cluster: Mapping[str, Any]) -> str:
    """Return the advice for an older broker, which gives no figures at all while one worker or group does not answer."""
    if workers_of(cluster) > 1:
        return "look at the broker's log: a worker that ended is started again; then check again"
    return "start its nodes, then check again"
