"""mode=single over any schedule of sessions that come, take, ack, hang and go: never two active ones of a topic, each topic in
its order, and a session takes over within the visibility timeout. ADR 0186."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.broker_rig import BrokerRig
from toymq_py.subscription import PatternSubscription

TOPICS = ["t.0", "t.1", "t.2"]
SESSIONS_MAX = 4


class SingleSessions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rig = BrokerRig()
        for name in TOPICS:
            self.rig.publish(name, b"x")
        self.sessions: list[PatternSubscription] = []
        self.held: dict[PatternSubscription, list[tuple[str, int]]] = {}
        self.acked: dict[str, list[int]] = {name: [] for name in TOPICS}

    @rule(name=st.sampled_from(TOPICS), count=st.integers(1, 4))
    def publish(self, name: str, count: int) -> None:
        self.rig.publish(name, *[b"x"] * count)

    @precondition(lambda self: len(self.sessions) < SESSIONS_MAX)
    @rule(window=st.integers(1, 5))
    def join(self, window: int) -> None:
        session = self.rig.follow("t.*", mode="single", window=window)
        self.sessions.append(session)
        self.held[session] = []

    @precondition(lambda self: self.sessions)
    @rule(at=st.integers(0, SESSIONS_MAX))
    def leave(self, at: int) -> None:
        session = self.sessions.pop(at % len(self.sessions))
        del self.held[session]
        session.close()

    @precondition(lambda self: self.sessions)
    @rule(at=st.integers(0, SESSIONS_MAX))
    def take(self, at: int) -> None:
        session = self.sessions[at % len(self.sessions)]
        while not session.paused and (delivery := session.take(1 << 20)) is not None:
            self.held[session] += [(delivery.topic, msg_id) for msg_id in delivery.records.ids[delivery.start : delivery.stop]]

    @precondition(lambda self: self.sessions)
    @rule(at=st.integers(0, SESSIONS_MAX), count=st.integers(1, 3))
    def ack(self, at: int, count: int) -> None:
        """Ack the oldest messages that a session holds, as a handler does that works one after the other."""
        session = self.sessions[at % len(self.sessions)]
        done, self.held[session] = self.held[session][:count], self.held[session][count:]
        for name, msg_id in done:
            if self.rig.ack(name, msg_id, msg_id, flush=False):
                self.acked[name].append(msg_id)

    @rule()
    def hang(self) -> None:
        """Let all leases end: another session may get what a handler still has. A session that hangs gets nothing while another
        one does not hang; that one may have all that was leased."""
        lost = {name for held in self.held.values() for name, _ in held}
        self.rig.advance(31)
        if any(not (session.late or session.paused) for session in self.sessions):
            for session in self.sessions:
                assert not session.late or session.take(1 << 20) is None
            for name in lost:
                single = self.rig.broker.topic(name).channel("c").single
                assert single is not None
                assert single.taker is not None
                assert not single.taker.lessee.late
        for held in self.held.values():
            held.clear()

    @rule(seconds=st.sampled_from([5, 20]))
    def be_slow(self, seconds: int) -> None:
        """Let some leases end."""
        self.rig.advance(seconds)
        self.drop_what_is_lost()

    @precondition(lambda self: self.sessions)
    @rule(at=st.integers(0, SESSIONS_MAX), delay=st.sampled_from([0.0, 3.0, 8.0]))
    def nack(self, at: int, delay: float) -> None:
        """Nack a message, as a handler that fails."""
        held = self.held[self.sessions[at % len(self.sessions)]]
        if held:
            name, msg_id = held[0]
            self.rig.broker.topic(name).nack("c", [(msg_id, msg_id)], delay)
            self.drop_what_is_lost()

    def drop_what_is_lost(self) -> None:
        """Before each message a handler asks with TOUCH whether it still has the lease, and drops the message if not."""
        for session, held in self.held.items():
            has = {
                (name, msg_id) for name in TOPICS if (channel := self.rig.broker.topic(name).channels.get("c")) is not None
                for first, last in channel.consumer.inflight_to(session) for msg_id in range(first, last + 1)
            }  # fmt: skip
            held[:] = [each for each in held if each in has]

    @precondition(lambda self: self.sessions)
    @rule(at=st.integers(0, SESSIONS_MAX))
    def pause_or_resume(self, at: int) -> None:
        session = self.sessions[at % len(self.sessions)]
        session.pause(not session.paused)

    @invariant()
    def one_session_holds_a_topic(self) -> None:
        for name in TOPICS:
            channel = self.rig.broker.topic(name).channels.get("c")
            if channel is not None:
                holders = [session for session in self.sessions if channel.consumer.inflight_to(session)]
                assert len(holders) <= 1, f"{len(holders)} sessions have messages of {name}"
                single = channel.single
                assert single is not None
                assert bool(self.sessions) == (single.active is not None), f"{name} has an active session while there is one"

    @invariant()
    def each_topic_is_acked_in_its_order(self) -> None:
        for name, ids in self.acked.items():
            assert ids == sorted(ids), f"{name}: {ids}"

    @invariant()
    def the_counts_are_those_of_the_topics(self) -> None:
        for session in self.sessions:
            mine = 0
            for name in TOPICS:
                single = self.rig.broker.topic(name).channel("c").single
                if single is not None:
                    next_one = single.heir or single.active
                    mine += next_one is not None and next_one.lessee is session
            assert session.active == mine

    def teardown(self) -> None:
        """Check that the remaining sessions get everything, within the visibility timeout."""
        if not self.sessions:
            return
        while len(self.sessions) > 1:
            self.leave(0)
        self.rig.advance(31)
        self.held[self.sessions[0]] = []
        self.sessions[0].pause(False)
        for _ in range(200):
            self.take(0)
            self.ack(0, 100)
        for name in TOPICS:
            topic = self.rig.broker.topic(name)
            assert self.acked[name] == list(range(topic.next_id)), name


TestSingleSessions = SingleSessions.TestCase
