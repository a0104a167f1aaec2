"""``toymqctl doctor``: checks of a broker, with remedies."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import click

from toymq_py.errors import PlacementUnknown, ToymqError
from toymq_py.names import DEAD_LETTERS, is_dead_letters
from toymq_py.units import counted
from toymqctl import explanations
from toymqctl.absences import advice_without_figures, examine_away, examine_groups, without
from toymqctl.broker import Broker
from toymqctl.explanations import explained
from toymqctl.findings import Finding, noted
from toymqctl.letters import waiting
from toymqctl.limits import number_of_topics, used
from toymqctl.places import cluster_of, figures_of_those_there, reachable_topics, workers_of
from toymqctl.tables import as_json as json_option
from toymqctl.tables import duration, print_json, size

PINGS = 5
SLOW_PING_S = 0.25
"""A round trip around the world; a slower broker is busy or starved."""
SLOW_FSYNC_S = 0.05
"""A hard disk needs 10 to 20 ms; a slower one is overloaded, or failing."""
SKEW_S = 1.0
"""More than NTP leaves; `@<unix-ms>`, delays and ages are off by as much."""
FULL_BYTES = 1 << 20
"""Less free space is none: a commit reserves about as much ahead."""
LITTLE_BYTES = 256 << 20
"""Free space below this warns, whatever --min-free-bytes: its default."""
SILENT_S = 1.0
"""A call of etcd without an answer ends after about so long, and may be lost alone."""
SPARE_FACTOR = 4
"""Free space below this multiple of --min-free-bytes warns; publishing resumes at twice."""
STALE_S = 24 * 3600.0
"""Age of unacked messages without a subscriber above which a check warns: an abandoned consumer keeps them on the disk."""
SLOW_S = 60.0
"""Age of messages that wait for an attached consumer above which it is behind, as on the dashboard."""
LOOK_AHEAD = 20_000
"""Messages that a consumer with mode=keyed knows to wait for their keys; it looks at none behind them (ADR 0122)."""
ATTEMPTS_NOTED = 5
"""Attempts at a message without an ack that are worth a look, as on the dashboard: a quarter of the default."""
NAMED_MAX = 3
"""The worst of a kind have their name; the others are a number."""
ATTEMPTS_MANY = 100
"""Five times the default --max-attempts: another delivery does not help such a message."""
EXPIRES_SOON_S = 14 * 24 * 3600.0
"""Time to create and distribute another token."""

OF_TOPICS = frozenset(("limits", "topics", "lag", "retries", "dead letters"))
"""Checks that look at the topics that are listed; the other ones are of the whole broker, or name a topic."""

NO_CLUSTER: Mapping[str, Any] = {}


def examine(
    stats: dict[str, Any], server: str, own_version: str, max_payload: int, round_trip_s: float, skew_s: float,
    cluster: Mapping[str, Any] = NO_CLUSTER, seen: str = "",
) -> Iterator[Finding]:  # fmt: skip
    """Check a broker's answer to STATS and its greeting; yield the findings.

    Args:
        cluster: the broker's answer to CLUSTER.
        server: the broker's name and version, from its greeting.
        max_payload: bytes, from the broker's greeting.
        skew_s: how far the broker's clock is ahead of ours, seconds.
        seen: which topics it lists, as in ``Broker.of_topics_seen``.
    """
    yield _speed(round_trip_s)
    yield _versions(server, own_version)
    yield from _workers(stats, cluster)
    of_all = noted(_of_all(stats, max_payload, skew_s, cluster), OF_TOPICS, seen)
    yield from without(of_all, stats.get("away", ()))


def _of_all(stats: dict[str, Any], max_payload: int, skew_s: float, cluster: Mapping[str, Any]) -> Iterator[Finding]:
    yield _durability(stats)
    yield from _disk(stats)
    yield from _tier(stats)
    yield from _copies(stats, cluster)
    yield from _etcd(stats, cluster)
    yield _limits(stats, max_payload, cluster)
    yield _clock(skew_s)
    yield from _tokens(stats)
    yield from _all_of(stats["topics"], stats["limits"])


def examine_without_figures(
    topics: list[dict[str, Any]] | None, server: str, own_version: str, round_trip_s: float, cluster: Mapping[str, Any],
    error: PlacementUnknown, seen: str = "",
) -> Iterator[Finding]:  # fmt: skip
    """Check an older broker while a group or worker is away, as far as possible: its STATS needs all of them, and fails with
    ``error``.

    Args:
        topics: the topics of the groups that answer; None when it is not known which do.
    """
    yield _speed(round_trip_s)
    yield _versions(server, own_version)
    yield from _copies({}, cluster)
    topics_where = "the topics there are" if topics is not None else "topics are"
    yield Finding(
        "figures", "FAIL", f"{error}: durability, disk, bucket, limits, clock, tokens and {topics_where} not checked",
        advice_without_figures(cluster),
    )  # fmt: skip
    if topics is not None:
        yield from noted(_all_of(topics, {}), OF_TOPICS, seen)


def _all_of(topics: list[dict[str, Any]], limits: dict[str, Any]) -> Iterator[Finding]:
    yield from _topics(topics)
    yield from _consumers(topics, limits)
    yield from _stuck(topics)
    yield _lag(topics)
    yield _retries(topics)
    yield _letters(topics)


def _speed(round_trip_s: float) -> Finding:
    found = f"answers in {round_trip_s * 1000:.2f} ms"
    if round_trip_s > SLOW_PING_S:
        return Finding("round trip", "warn", found, "look at the load of the broker's machine, and at the network between")
    return Finding("round trip", "ok", found)


def _versions(server: str, own: str) -> Finding:
    theirs = server.partition("/")[2]
    found = f"broker {theirs or server}, toymqctl {own}"
    if theirs != own:
        return Finding("version", "warn", found, "install the same version on both sides: each may lack what the other has")
    return Finding("version", "ok", found)


def _workers(stats: dict[str, Any], cluster: Mapping[str, Any]) -> Iterator[Finding]:
    yield from examine_away(away := stats.get("away", ()), cluster)
    if (count := workers_of(cluster)) > 1 and not away:
        found = f"{count}, all of them answer; worker {cluster['worker']} answers this command, with the figures of all"
        yield Finding("workers", "ok", found)


def _durability(stats: dict[str, Any]) -> Finding:
    if stats["fsync"] == "always":
        return Finding("durability", "ok", "OK means on the disk")
    found = f"--fsync {stats['fsync']}: OK does not mean that a message survives a power cut"
    return Finding("durability", "warn", found, "start the broker with --fsync always, unless that is what you want")


def _disk(stats: dict[str, Any]) -> Iterator[Finding]:
    free, reserve = stats["disk_free_bytes"], stats["limits"]["min_free_bytes"]
    stops = f"stops below {size(reserve)}" if reserve else "goes on until the disk is full (--min-free-bytes 0)"
    found = f"{size(free)} free, publishing {stops}"
    if stats["disk_low"] or free < reserve:
        yield Finding("disk", "FAIL", f"{found}: publishing is refused", "make room on the broker's disk; it resumes by itself")
    elif free < FULL_BYTES:
        advice = "make room on the broker's disk; publishing resumes by itself. A --min-free-bytes keeps room for acks"
        yield Finding("disk", "FAIL", f"{size(free)} free: the disk is full, and publishing fails", advice)
    elif free < max(SPARE_FACTOR * reserve, LITTLE_BYTES):
        yield Finding("disk", "warn", found, "make room, or delete unused topics and forget unused consumers")
    else:
        yield Finding("disk", "ok", found)
    slow = stats["fsync_p99_s"] > SLOW_FSYNC_S
    found = f"p99 {stats['fsync_p99_s'] * 1000:.2f} ms of {stats['fsync_total']}"
    advice = "give the broker a disk of its own, or a faster one; see what else writes to it" if slow else ""
    yield Finding("fsync", "warn" if slow else "ok", found, advice)


def _tier(stats: dict[str, Any]) -> Iterator[Finding]:
    waiting_for = [
        f"readers of {topic['topic']} wait: {topic['evicted']['problem']}"
        for topic in stats["topics"] if topic.get("evicted", {}).get("problem") is not None
    ]  # fmt: skip
    if "tier" not in stats:
        if waiting_for:
            yield Finding("tier", "FAIL", _worst(waiting_for), "start the broker with the --tier that it had")
        return
    advice = "see to the bucket: mount, network, credentials, `toymq tier check`; it is tried again by itself"
    if stats["tier_problem"] is not None:
        behind = f"{stats['tier']} does not get all segments, they stay on the disk: {stats['tier_problem']}"
        yield Finding("tier", "FAIL", "; ".join([behind, *waiting_for[:1]]), advice)
    elif waiting_for:
        yield Finding("tier", "FAIL", _worst(waiting_for), advice)
    else:
        yield Finding("tier", "ok", f"{stats['tier']} gets what is sealed")


def _copies(stats: dict[str, Any], cluster: Mapping[str, Any]) -> Iterator[Finding]:
    """Check the copies of each group of a cluster. The figures in STATS are those of the group that answers."""
    own = stats.get("cluster")
    whose = f"copies of group {cluster['group']}" if "groups" in cluster else "copies"
    is_damaged = own is not None and own["damaged_segments"]
    if own is not None and is_damaged:
        found = f"damage in {counted(int(own['damaged_segments']), 'segment')} that no copy has mended"
        yield Finding(whose, "FAIL", found, "see the broker's log, and `toymq verify` on each node's directory")
    told = {name: group for name, group in cluster.get("groups", {}).items() if "in_sync" in group}  # not by older leaders
    for name, group in told.items():
        if group["leader"] is not None and not (is_damaged and name == cluster["group"]):
            yield _in_sync(f"copies of group {name}", group, f"toymqctl cluster --group {name}")
    if own is not None and not told and not is_damaged:
        yield _in_sync(whose, own, "toymqctl cluster")


def _in_sync(check: str, cluster: Mapping[str, Any], shows: str) -> Finding:
    in_sync, least = int(cluster["in_sync"]), int(cluster.get("min_in_sync", 1))
    copies = max(int(cluster.get("replicas", 0)), in_sync)  # an older broker does not say how many there are to be
    remedy = f"start the other nodes, or add one: `{shows}` shows them"
    if in_sync < least:
        found = f"{in_sync} of {copies} copies in sync: below {least} publishes are refused (NOT_ENOUGH_REPLICAS)"
        return Finding(check, "FAIL", found, remedy)
    if in_sync <= 1:
        return Finding(check, "warn", "one copy is in sync: what gets OK is on its leader's disk alone", remedy)
    if in_sync < copies:
        return Finding(check, "warn", f"{in_sync} of {copies} copies are in sync", remedy)
    return Finding(check, "ok", f"{in_sync} copies in sync")


def _etcd(stats: dict[str, Any], cluster: Mapping[str, Any]) -> Iterator[Finding]:
    """Check what the leader that answers says of its etcd; a leader of an older version does not report it."""
    silent_s = stats.get("cluster", {}).get("etcd_silent_s")
    if silent_s is not None and silent_s < SILENT_S:
        yield Finding("etcd", "ok", "answers the leader")
    elif silent_s is not None:
        then = "no copy takes over from a leader that dies" + ", and no new topic is placed" * ("groups" in cluster)
        found = f"has not answered the leader for {duration(silent_s)}: what is there goes on; {then}"
        yield Finding("etcd", "FAIL", found, explanations.OF_ETCD)


def _limits(stats: dict[str, Any], max_payload: int, cluster: Mapping[str, Any]) -> Finding:
    counts, near = used(stats, cluster)
    found = f"{counts}, payloads up to {size(max_payload)}"
    if near:
        larger = f"start the broker with a larger {' and '.join(near)}, or find the client that uses so many"
        return Finding("limits", "warn", found, larger)
    return Finding("limits", "ok", found)


def _clock(skew_s: float) -> Finding:
    if abs(skew_s) <= SKEW_S:
        return Finding("clock", "ok", "as ours")
    where = "ahead of" if skew_s > 0 else "behind"
    found = f"{duration(abs(skew_s))} {where} ours"
    return Finding("clock", "warn", found, "set both clocks by NTP; the times of messages are off by as much")


def _tokens(stats: dict[str, Any]) -> Iterator[Finding]:
    for token in stats.get("tokens", ()):
        left_s = (token["expires_ms"] - stats["time_ms"]) / 1000
        advice = f"make another one: `toymqctl token create`, take {token['name']} out of the auth file, SIGHUP"
        if left_s <= 0:
            yield Finding(f"token {token['name']}", "FAIL", f"expired {duration(-left_s)} ago: it is refused", advice)
        elif left_s < EXPIRES_SOON_S:
            yield Finding(f"token {token['name']}", "warn", f"expires in {duration(left_s)}", advice)
        else:
            yield Finding(f"token {token['name']}", "ok", f"expires in {duration(left_s)}")


def _topics(topics: list[dict[str, Any]]) -> Iterator[Finding]:
    fine = True
    for topic in topics:
        name = f"topic {topic['topic']}"
        if "problem" in topic:
            fine = False
            yield Finding(
                name, "FAIL", f"not served: {topic['problem']}",
                "if that names no remedy: stop the broker, `toymq verify DATA_DIR`, `toymq repair DATA_DIR` where it says so,"
                " then start it again",
            )  # fmt: skip
        elif topic["state"] == "failed":
            fine = False
            yield Finding(
                name, "FAIL", "its log failed a write or an fsync: publishing is refused, reading goes on",
                "look at the broker's log and disk, then restart the broker",
            )  # fmt: skip
        elif "offsets_problem" in topic and not topic["lost"]:
            fine = False
            yield Finding(
                name, "FAIL", f"{topic['state']}: state of its consumers is damaged or missing ({topic['offsets_problem']})",
                "consumers that are missing begin at the first id until the broker is restarted; look at the disk",
            )  # fmt: skip
        elif topic["state"] != "ok" and not topic["lost"]:
            fine = False
            yield Finding(
                name, "FAIL", f"{topic['state']}: no message is known to be lost, but a file is damaged, gone or a copy",
                "`toymq verify DATA_DIR` names it; look at the disk; `toymq repair DATA_DIR` puts strange files aside",
            )  # fmt: skip
        elif topic["state"] != "ok" or topic["lost"]:
            fine = False
            yield Finding(
                name, "FAIL",
                f"{topic['state']}: {counted(topic['lost'], 'message', 'are lost to damage')}, the others are served",
                "`toymq verify DATA_DIR` names files and ids; look at the disk, publish again what you have elsewhere; stop the"
                " broker, and `toymq repair DATA_DIR` accepts the loss",
            )  # fmt: skip
    if fine:
        yield Finding("topics", "ok", f"{number_of_topics(topics)}, none degraded")


def _consumers(topics: list[dict[str, Any]], limits: dict[str, Any]) -> Iterator[Finding]:
    """Check each consumer. ``limits``: those in STATS, which are also the defaults of topics; older brokers lack some."""
    max_attempts, max_unacked = limits.get("max_attempts"), limits.get("max_unacked")
    for topic in topics:
        for consumer in topic["consumers"]:
            if _is_abandoned(consumer):
                age_s = consumer["oldest_unacked_age_s"]
                yield Finding(
                    f"consumer {consumer['consumer']} of {topic['topic']}", "warn",
                    f"{consumer['backlog']} unacked, the oldest for {duration(age_s)}, and it has no subscriber",
                    f"start it, or `toymqctl forget {topic['topic']} {consumer['consumer']}`: its messages stay on the disk",
                )  # fmt: skip
            if max_unacked is not None and consumer["ready"] and consumer["inflight"] >= max_unacked:
                yield Finding(
                    f"consumer {consumer['consumer']} of {topic['topic']}", "warn",
                    f"{counted(consumer['inflight'], 'message', 'are inflight')}, the limit (--max-unacked): it gets no new "
                    "ones",
                    "let its clients ack what they have done; `toymqctl connections` shows how many each connection has",
                )  # fmt: skip
            attempts = consumer.get("attempts_max", 0)  # missing in older brokers
            if attempts >= ATTEMPTS_MANY and _is_endless(topic, max_attempts):
                yield Finding(
                    f"consumer {consumer['consumer']} of {topic['topic']}", "warn",
                    f"message {consumer['attempts_max_id']} has had {attempts} attempts and max_attempts is 0",
                    _against_redelivery(topic["topic"], consumer),
                )  # fmt: skip


def _is_stuck(consumer: dict[str, Any]) -> bool:
    """Whether all waiting messages wait behind failing messages of their keys: more workers would get none of them."""
    retrying = consumer.get("retrying", 0)  # missing in older brokers
    return bool(retrying and consumer["ready"] and consumer["mode"] == "keyed" and consumer["inflight"] <= retrying)


def _stuck(topics: list[dict[str, Any]]) -> Iterator[Finding]:
    for topic in topics:
        name = topic["topic"]
        for consumer in topic["consumers"]:
            if _is_stuck(consumer) and consumer["oldest_unacked_age_s"] > SLOW_S:
                reader, msg_id = consumer["consumer"], consumer["attempts_max_id"]
                waiting_for, retried = consumer["ready"], consumer["retrying"]
                settle = ("ack", "") if is_dead_letters(name) else ("nack", " --dead")
                yield Finding(
                    f"consumer {reader} of {name}", "warn",
                    f"{counted(waiting_for, 'message', 'wait')} behind {retried} of the same keys that "
                    f"{'is' if retried == 1 else 'are'} retried (most often: id {msg_id}, "
                    f"{consumer['attempts_max']} attempts)"
                    + (f"; messages of other keys behind {LOOK_AHEAD} of them may wait, too" * (waiting_for >= LOOK_AHEAD)),
                    f"more workers do not help. `toymqctl inspect {name} {msg_id}` shows its last error; mend its handler, or "
                    "give it up: "
                    f"`toymqctl {settle[0]} {name} {reader} {msg_id}{settle[1]}`",
                )  # fmt: skip


def _is_abandoned(consumer: dict[str, Any]) -> bool:
    return bool(consumer["backlog"] and not consumer["sessions"] and consumer["oldest_unacked_age_s"] > STALE_S)


def _working(topics: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the consumers of messages, not those of dead letters, each with a name for it."""
    for topic in topics:
        if not is_dead_letters(topic["topic"]):
            for consumer in topic["consumers"]:
                yield f"{consumer['consumer']} of {topic['topic']}", consumer


def _lag(topics: list[dict[str, Any]]) -> Finding:
    """Check for consumers that are behind. Leased messages count as being worked on, however long that takes; abandoned and
    stuck consumers have findings of their own."""
    behind = [
        (consumer["oldest_unacked_age_s"], name, consumer)
        for name, consumer in _working(topics)
        if consumer["ready"] and consumer["oldest_unacked_age_s"] > SLOW_S
        and not (_is_abandoned(consumer) or _is_stuck(consumer))
    ]  # fmt: skip
    if not behind:
        return Finding("lag", "ok", f"no consumer is behind by more than {duration(SLOW_S)}")
    behind.sort(key=lambda row: -row[0])
    said = [
        f"{name} has {consumer['backlog']} unacked, the oldest for {duration(age_s)}"
        + ("" if consumer["sessions"] or consumer["inflight"] else ", and nothing is attached")
        for age_s, name, consumer in behind
    ]
    advice = "start its workers, or more of them; see their log for what takes long. `toymqctl consumers` lists all"
    return Finding("lag", "warn", _worst(said), advice)


def _retries(topics: list[dict[str, Any]]) -> Finding:
    """Check for consumers that fail. A message nacked with a delay is no backlog until it is due, so a consumer that fails at
    everything has no lag."""
    failing = [
        (consumer["retrying"], name, consumer["attempts_max"], consumer["attempts_max_id"])
        for name, consumer in _working(topics)
        if consumer.get("retrying") and consumer["attempts_max"] >= ATTEMPTS_NOTED  # an older broker does not say it
    ]  # fmt: skip
    if not failing:
        return Finding("retries", "ok", f"no message has had {ATTEMPTS_NOTED} attempts without an ack")
    failing.sort(key=lambda row: -row[0])
    said = [
        f"{name} retries {counted(count, 'message')} after failed attempts, one of them has had {attempts} (id {msg_id})"
        for count, name, attempts, msg_id in failing
    ]
    return Finding("retries", "warn", _worst(said), "see why its handler fails: its log, or of a webhook `toymqctl webhooks`")


def _letters(topics: list[dict[str, Any]]) -> Finding:
    found = [(waiting(topic), topic["topic"].removesuffix(DEAD_LETTERS)) for topic in topics if _has_letters(topic)]
    if not found:
        return Finding("dead letters", "ok", "none")
    found.sort(key=lambda row: -row[0])
    _, first = found[0]
    advice = f"`toymqctl dlq list {first} --group` says why; mend the cause, then `toymqctl dlq redrive {first}`"
    return Finding("dead letters", "warn", _worst([f"{count} of {origin}" for count, origin in found]), advice)


def _has_letters(topic: dict[str, Any]) -> bool:
    return bool(is_dead_letters(topic["topic"]) and topic.get("messages") and waiting(topic))


def _worst(said: list[str]) -> str:
    """Return the first text, and how many more there are."""
    more = f"; and {len(said) - NAMED_MAX} more" if len(said) > NAMED_MAX else ""
    return "; ".join(said[:NAMED_MAX]) + more


def _is_endless(topic: dict[str, Any], max_attempts: int | None) -> bool:
    """Whether messages of a topic may be redelivered without end; dead letters are."""
    return is_dead_letters(topic["topic"]) or topic["settings"].get("max_attempts", max_attempts) == 0


def _against_redelivery(topic: str, consumer: dict[str, Any]) -> str:
    ack = f"`toymqctl ack {topic} {consumer['consumer']} {consumer['attempts_max_id']}`"
    if is_dead_letters(topic):
        return f"see why its handler fails; {ack} gives the letter up"
    return f"see why its handler fails; `toymqctl config {topic} max_attempts=20` makes it a dead letter, {ack} gives it up"


def _look(broker: Broker) -> Iterator[Finding]:
    answered: list[str] = []
    try:
        with broker.connect(on_event=lambda event: answered.append(event.address)) as client:
            yield Finding("reachable", "ok", answered[0])
            round_trip_s = statistics.median(client.ping() for _ in range(PINGS))
            cluster = cluster_of(client)
            yield from examine_groups(cluster)
            asked = datetime.now(UTC).timestamp()
            server, own_version = client.server or "", version("toymq")
            try:
                stats = figures_of_those_there(client)
            except PlacementUnknown as error:
                topics = reachable_topics(client, cluster) if "groups" in cluster else None
                yield from examine_without_figures(
                    topics, server, own_version, round_trip_s, cluster, error, broker.of_topics_seen
                )
                return
            ours = asked if stats.get("away") else (asked + datetime.now(UTC).timestamp()) / 2  # what is away was waited for
            yield from examine(
                stats, server, own_version, client.max_payload or 0, round_trip_s, stats["time_ms"] / 1000 - ours, cluster,
                broker.of_topics_seen,
            )  # fmt: skip
    except (ToymqError, OSError) as error:
        yield Finding("reachable", "FAIL", *explained(broker.address, error))


@click.command(short_help="Check the broker, and suggest remedies.")
@json_option
@click.pass_obj
def doctor(broker: Broker, as_json: bool) -> None:
    """Check the broker and suggest remedies: reachability, versions, disk, bucket, copies, etcd, limits, clock, tokens,
    degraded topics, lag and retries of consumers, dead letters.

    Of a cluster with groups the copies of each group are checked; of disk and fsync you see the worst of all leaders.

    Exit code 1 when a check FAILs; warnings alone exit with 0.
    """
    failed = False
    for finding in _look(broker):
        failed |= finding.state == "FAIL"
        if as_json:
            print_json([asdict(finding)])
            continue
        click.echo(f"{finding.state:4}  {finding.check}: {finding.found}")
        if finding.advice:
            click.echo(f"      do: {finding.advice}")
    if failed:
        raise SystemExit(1)
