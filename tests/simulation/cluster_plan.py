"""The plan of faults in one simulated cluster: drawn from a seed, or written by hand, and made smaller when a world fails.

    plan = plan_of(seed)
    smallest = shrink(plan, fails)

Swarm testing: each seed draws which kinds of faults its world has, and how dense they are. A world with all kinds at once
rarely reaches the states in which one kind alone does harm. A third of the seeds draw a trap instead, which aims at the window
of time that one rule protects.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

KINDS = {
    "kill": 2, "power": 3, "power_of_all": 2, "job": 2, "pause": 2, "long_pause": 2, "partition": 3, "cut_from": 2, "cut_to": 2,
    "isolation": 1, "etcd_cut": 2, "etcd_away": 1, "etcd_slow": 1, "watch_lag": 1, "lost_answers": 3, "late_requests": 2,
    "lossy_etcd": 1, "lease": 3, "bad_disk": 1, "full_disk": 1, "slow_disk": 2, "slow_disks": 1, "reset": 3, "stop": 1,
    "hand_over": 1, "clock": 1,
}  # fmt: skip
"""The faults, and how likely each is."""

PROVOKED = {
    "T2 sent": ("lease", "kill", "power", "hand_over", "long_pause"),
    "T2 done": ("lease", "kill", "power", "hand_over"),
    "opening": ("lease", "kill", "power"),
    "T3 drop sent": ("reset", "partition", "cut_to", "pause"),
    "T3 drop done": ("reset", "partition", "cut_to"),
    "T3 add sent": ("reset", "reset", "kill"),
    "T3 add done": ("reset", "reset", "kill"),
    "copying": ("reset", "kill", "power"),
    "catching up": ("reset", "kill"),
    "joining": ("reset", "kill"),
    "T4 sent": ("hand_over", "stop"),
    "connecting": ("reset", "partition", "cut_to", "kill"),
}
"""Moments that a step may wait for, and the faults that bring each about."""

AIMED = {
    "T2 sent": (("late_requests", "leader"), ("lost_answers", "leader"), ("partition", "leader"), ("power", "follower"),
                ("pause", "leader"), ("etcd_cut", "leader")),
    "T2 done": (("power", "leader"), ("kill", "leader"), ("partition", "leader"), ("pause", "leader"), ("lease", "leader")),
    "opening": (("power", "leader"), ("kill", "leader"), ("reset", "leader"), ("slow_disk", "follower"),
                ("lost_answers", "leader")),
    "T3 add sent": (("late_requests", "leader"), ("late_requests", "leader"), ("lost_answers", "leader"), ("kill", "leader"),
                    ("partition", "leader"), ("kill", "follower"), ("power", "follower"), ("slow_disk", "follower"),
                    ("cut_from", "leader"), ("reset", "follower")),
    "T3 add done": (("power", "leader"), ("power_of_all", "leader"), ("partition", "leader"), ("lease", "leader"),
                    ("pause", "leader"), ("power", "follower")),
    "T3 drop sent": (("late_requests", "leader"), ("lost_answers", "leader"), ("long_pause", "leader"), ("kill", "leader"),
                     ("power", "leader"), ("partition", "leader"), ("power", "follower"), ("kill", "follower")),
    "connecting": (("kill", "leader"), ("lease", "leader"), ("etcd_cut", "follower"), ("watch_lag", "any"),
                   ("partition", "leader")),
    "T3 drop done": (("power", "leader"), ("lease", "leader"), ("kill", "leader"), ("isolation", "leader")),
}  # fmt: skip
"""What is worst at a moment."""
THEN = (
    (("power", "leader"), ("lease", "leader")), (("power", "leader"),), (("lease", "leader"),), (("kill", "leader"),),
    (("isolation", "leader"),), (("long_pause", "leader"),), (("power_of_all", "leader"),),
)  # fmt: skip
"""What shows the harm of the step before."""

LATE = ("late_requests", "leader")
LOST = ("lost_answers", "leader")
SLOW = ("slow_disk", "follower")
GONE = ((("kill", "follower"),), (("power", "follower"),), (("partition", "leader"), ("reset", "follower")))
DEAD = (("power", "leader"), ("lease", "any"))
TRAPS = {
    "T3 that adds is in doubt, and the follower is gone": (
        ("T3 add sent", ("reset",), tuple((LATE, *gone) for gone in GONE), 5.0), ("", (), ((("lease", "any"),), DEAD), 5.0),
    ),
    "T3 that drops is in doubt": (
        ("T3 drop sent", ("reset", "partition"), tuple((doubt, *gone) for gone in GONE for doubt in (LATE, LOST)), 5.0),
    ),
    "T2 comes late, and another one leads and dies": (
        ("T2 sent", ("lease", "kill"), ((LATE, ("partition", "leader")),), 2.5), ("", (), (DEAD,), 5.0),
    ),
    "T3 comes late, in the next life of the leader that sent it": (
        ("T3 add sent", ("reset",), ((LATE, ("kill", "leader"), ("partition", "leader")),), 5.0),
    ),
    "a leader that is no more drops a follower": (
        ("T3 drop sent", ("partition", "power"), ((LATE, ("long_pause", "leader")), (LATE, ("kill", "leader"))), 5.0),
        ("", (), ((("long_pause", "leader"), ("reset", "leader")), (("lease", "any"),)), 5.0),
    ),
    "the leader that was read is not the one that is reached": (
        ("connecting", ("partition", "reset"), ((("kill", "leader"), ("etcd_cut", "follower")),
                                               (("lease", "leader"), ("etcd_cut", "follower"), ("partition", "leader"))), 5.0),
    ),
    "a new leader serves, and a member is not dropped yet": (
        ("T2 done", ("lease", "kill", "power"), ((LATE, SLOW), (LOST, SLOW), (SLOW,)), 1.2),
    ),
}  # fmt: skip
"""The windows of the rules, each as steps: when, provoked by one of these, one of these acts, the longest rest."""

TARGETS = ("leader", "leader", "follower", "follower", "any")
RESTS_S = (0.01, 0.3, 1.0, 3.0, 6.0)


@dataclass(frozen=True, slots=True)
class Step:
    """Faults at one moment, then a rest.

    ``acts``: kinds of faults, each with its target, all injected at once; ``when``: the moment to wait for, "" for now;
    ``provoked_by``: a fault that should bring this moment about, "" for none; ``seed``: decides all details.
    """

    acts: tuple[tuple[str, str], ...]
    when: str = ""
    provoked_by: str = ""
    rest_s: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The properties of a world, and the faults in it. ``ending``: "resets": followers join again while the last offsets are
    flushed; "wipe": etcd loses all its keys."""

    hosts: int = 2
    min_in_sync: int = 1
    timeout_s: float = 1.5
    buffer_bytes: int = 64 << 20
    segment_bytes: int = 16_384
    publishers: int = 2
    pauses_s: tuple[float, ...] = (0.01, 0.3, 1.0)
    """Of a publisher between two publishes: at most one of these."""
    begins_s: float = 1.0
    steps: tuple[Step, ...] = ()
    ending: str = ""


def plan_of(seed: int) -> Plan:
    """Draw the plan of a seed."""
    rng = random.Random(f"plan {seed}")
    hosts = rng.choice((2, 2, 3))
    return Plan(
        hosts=hosts,
        min_in_sync=rng.choice((1, 1, hosts - 1)),
        timeout_s=rng.choice((1.5, 3.0)),
        buffer_bytes=rng.choice((64 << 10, 64 << 20, 64 << 20)),
        segment_bytes=rng.choice((4096, 16_384, 16_384)),
        publishers=rng.choice((1, 2, 2)),
        pauses_s=rng.choice(((0.01, 0.3, 1.0), (0.3, 1.0), (0.05, 0.1))),
        begins_s=rng.choice((0.1, 1.0, 2.0)),
        steps=_steps(rng),
        ending=rng.choice(("", "", "", "resets", "wipe")),
    )


def _steps(rng: random.Random) -> tuple[Step, ...]:
    return _trap(rng) if rng.random() < 0.35 else _swarm(rng)


def _trap(rng: random.Random) -> tuple[Step, ...]:
    parts = TRAPS[rng.choice(list(TRAPS))] * 2
    return tuple(
        Step(rng.choice(acts), when, rng.choice(provoked or ("",)), round(rng.uniform(0.5, rest_s), 3), rng.randrange(1 << 30))
        for when, provoked, acts, rest_s in parts
    )


def _swarm(rng: random.Random) -> tuple[Step, ...]:
    known = [kind for kind in KINDS if rng.random() < 0.5] or ["kill"]
    weights = [KINDS[kind] for kind in known]
    moments = [each for each in PROVOKED if rng.random() < 0.3]
    aimed = rng.choice((0.3, 0.7, 0.9)) if moments else 0.0
    rests_s = rng.sample(RESTS_S, rng.choice((1, 2, 5)))
    steps: list[Step] = []
    for _ in range(rng.choice((2, 3, 4, 6))):
        when = rng.choice(moments) if rng.random() < aimed else ""
        provoked_by = rng.choice(PROVOKED[when]) if when and rng.random() < 0.8 else ""
        if when in AIMED and rng.random() < 0.7:
            acts = tuple(dict(rng.sample(AIMED[when], rng.choice((1, 2, 2, 3)))).items())
        elif steps and steps[-1].when and rng.random() < 0.5:
            acts, when, provoked_by = rng.choice(THEN), "", ""
        else:
            kinds = rng.choices(known, weights, k=rng.choice((1, 1, 1, 2)))
            acts = tuple({kind: rng.choice(TARGETS) for kind in kinds}.items())
        rest_s = round(rng.choice(rests_s) * rng.random(), 3)
        steps.append(Step(acts, when, provoked_by, rest_s, rng.randrange(1 << 30)))
    return tuple(steps)


def smaller(plan: Plan) -> list[Plan]:
    """Return plans with less in them, the smallest first."""
    found = [replace(plan, steps=plan.steps[:at] + plan.steps[at + 1 :]) for at in range(len(plan.steps))]
    for at, step in enumerate(plan.steps):
        less = [replace(step, acts=step.acts[:n] + step.acts[n + 1 :]) for n in range(len(step.acts)) if len(step.acts) > 1]
        if step.provoked_by:
            less.append(replace(step, provoked_by=""))
        if step.when:
            less.append(replace(step, when="", provoked_by=""))
        found += [replace(plan, steps=(*plan.steps[:at], each, *plan.steps[at + 1 :])) for each in less]
    if plan.publishers > 1:
        found.append(replace(plan, publishers=1))
    if plan.ending:
        found.append(replace(plan, ending=""))
    if plan.hosts > 2:
        found.append(replace(plan, hosts=2, min_in_sync=1))
    return found


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Return the smallest plan that still fails, by leaving out one thing at a time. Assumes that ``plan`` fails."""
    while (less := next((each for each in smaller(plan) if fails(each)), None)) is not None:
        plan = less
    return plan
