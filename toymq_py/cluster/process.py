"""The process of a cluster node: wires etcd, replication, standby answers and broker together, and runs the node.

Contract: replication.md, section 5; ADR 0107. Only this module of the package knows etcd's client.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from toymq_py import daemon
from toymq_py.broker import Broker
from toymq_py.clock import SystemClock
from toymq_py.cluster.arrivals import Arrivals
from toymq_py.cluster.departures import Departures, Home
from toymq_py.cluster.group_placement import GroupPlacement
from toymq_py.cluster.office import BrokerOffice
from toymq_py.cluster.pass_link import PassLink, Refusals, take_passed
from toymq_py.cluster.replica_listener import ReplicaListener, connect
from toymq_py.cluster.standby import LEADER_LISTENERS, Standby
from toymq_py.cluster.supervisor import TERM_ENDED
from toymq_py.command_line import needs
from toymq_py.config.option_schema import is_public, is_unspecified, parse_address, parse_endpoints
from toymq_py.config.options import ServeOptions
from toymq_py.data_directory import made_and_locked
from toymq_py.errors import ConfigError, DataDirectoryError, EtcdError, TermEnded
from toymq_py.metrics import ClusterRows
from toymq_py.names import some_of
from toymq_py.net.certificates import certified
from toymq_py.net.host_names import AllowedHosts
from toymq_py.option_files import Files, read_files
from toymq_py.replication.agreement import DEFAULT_GROUP, Agreement, ClusterSettings, LeaderKey, Member, Seat
from toymq_py.replication.bulk_copy import Pace
from toymq_py.replication.etcd_client import EtcdAgreement, EtcdClient, EtcdOptions
from toymq_py.replication.follower_link import FollowerLink
from toymq_py.replication.kept_places import KeptPlaces
from toymq_py.replication.link_options import Identity, LinkOptions
from toymq_py.replication.move_line import MOVE
from toymq_py.replication.node import REASONS, Node
from toymq_py.replication.pass_line import PASS, Pass
from toymq_py.replication.replica_file import ReplicaFile, misplaced, record_in
from toymq_py.replication.term import Surroundings, TermOptions
from toymq_py.runtime.broker_loop import LoopScheduler
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.workers_file import check_no_part, check_usable

logger = logging.getLogger("toymq_py.cluster")

PASS_S = 3.0
"""How long a connection to the listener of replicas may say nothing."""
STATES = ("START", "LOOKING", "JOINING", "FOLLOWING", "OPENING", "LEADING", "STEPPING DOWN")
IN_OFFICE_S = 0.5
"""How long a follower's connection waits here for this node to learn that it is elected."""
SETTINGS_RETRY_S = 1.0
SAY_EVERY = 10


def preload(options: ServeOptions) -> None:
    """Import all modules that a leader needs, so that a failover need not. Raises: ConfigError if one is missing."""
    if options.http is not None or options.https is not None:
        try:
            import toymq_py.gateway  # (for its modules)
        except ModuleNotFoundError as error:
            raise ConfigError(f"{'--http' if options.http else '--https'} {needs(error, 'http')}") from None
    if options.metrics is not None:
        import toymq_py.observability.metrics_server
    if options.amqp is not None or options.amqps is not None:
        import toymq_py.amqp  # noqa: F401


Ready = Callable[[list[str], str], None]
"""Takes the addresses, and what this node waits for before it can serve; "" where nothing is amiss."""


def run(options: ServeOptions, ready: Ready, reloads: Mapping[str, Callable[[], None]], lives: int) -> int:
    """Run a node until it is stopped, or its term ends. Blocks.

    Args:
        ready: called when etcd was asked once and clients get answers, if only the leader's address.
        reloads: as in ``daemon.serve``.
        lives: a descriptor that becomes readable when the supervisor has died; then the node hands over and ends.

    Returns: the exit code. Raises: ConfigError, DirectoryLocked, DataDirectoryError.
    """
    files = read_files(options)
    return daemon.run(_run(daemon.prepared(options), files, ready, reloads, lives))


async def _run(
    options: ServeOptions, files: Files, ready: Ready,
    reloads: Mapping[str, Callable[[], None]], lives: int,
) -> int:  # fmt: skip
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as bound:
        process = _NodeProcess(options, files, loop, bound)
        return await process.run(ready, {**reloads, **files.reloads(options)}, lives)


def over_tls(advertised: str, listen: str, tls: str) -> str:
    """HOST:PORT at which clients reach a node over TLS; "" when they do not.

    Args:
        advertised: where clients are told to connect. If it differs from ``listen``, a proxy there may end TLS for the node.
        listen: the address of ``--listen``, which has no TLS.
        tls: where other machines reach ``--tls-listen``; "" without that option.
    """
    if not tls:
        return "" if advertised == listen else advertised
    return tls if parse_address(advertised)[1] == parse_address(listen)[1] else advertised


def unmade(cluster: str, group: str | None, others: Iterable[str], used: str | None) -> str:
    """The advice to log when etcd has no settings for this node's group.

    Args:
        group: the value of ``--group``.
        others: the groups that the cluster has.
        used: the data directory, if it belonged to a group before.
    """
    init = "`toymqctl cluster init`" if group is None else f"`toymqctl cluster --group {group} init`"
    there, name = some_of(others), group or DEFAULT_GROUP
    if there == some_of(()):
        return f"etcd knows no cluster {cluster}: {init} makes one"
    if used is None:
        return f"the cluster {cluster} has no group {name}, it has {there}: {init} makes it, or name one with --group"
    return (
        f"the group {name} is no longer in the cluster {cluster}, which has {there}: `toymqctl cluster remove-group` took it "
        f"out. Stop this node; {used} stays as it is. {init} would make a new group, which begins with empty directories"
    )


def namesakes(seats: Iterable[Seat], me: Member) -> str:
    """The advice to log when another node of the group runs under this node's name; "" when none does."""
    named = [seat.member for seat in seats if seat.present and seat.member.name == me.name]
    others = [f"that of {member.url} ({member.replica})" for member in named if member.replica != me.replica]
    if not others:
        return ""
    return f"another node of this group is named {me.name}, too: {some_of(others)}. Start one of them with a --name of its own"


class _NodeProcess:
    """The parts of a node process that live from its start to its end. Also the ``View`` of the standby answers."""

    def __init__(
        self, options: ServeOptions, files: Files, loop: asyncio.AbstractEventLoop,
        bound: contextlib.ExitStack,
    ) -> None:  # fmt: skip
        """Raises: ConfigError, DirectoryLocked, DataDirectoryError."""
        self._options = options
        self._files = files
        self._token = files.nodes_secret
        self._loop = loop
        self._clock = SystemClock()
        self._fs = RealFileSystem()
        self._listeners = daemon.bind_all(options, options.listeners(), bound)
        self._advertised = options.advertise or daemon.shown_address(self._listeners["--listen"][0])
        self._lock = made_and_locked(self._fs, options.data_dir, os.getpid(), f"toymq://{self._advertised}")
        bound.callback(self._lock.release)
        answering = {option: some for option, some in self._listeners.items() if option not in LEADER_LISTENERS}
        daemon.claim(answering)
        certificates = files.certificates
        self._answering = answering
        self._standby = Standby(
            answering, self, loop, lambda: certificates.context if certificates is not None else None,
            AllowedHosts(options.allowed_host, certified(certificates)),
        )  # fmt: skip
        self._scheduler = LoopScheduler(loop)
        self._node: Node | None = None
        self._link: FollowerLink | None = None
        self._etcd: EtcdAgreement | None = None
        self._stop = asyncio.Event()
        self._debug_wire: Callable[[], None] = lambda: None
        self._group = options.group or DEFAULT_GROUP
        self._office: BrokerOffice | None = None
        self._placement: GroupPlacement | None = None
        self._refusals = Refusals()
        self._name = options.name or socket.gethostname().partition(".")[0]

    async def run(self, ready: Ready, reloads: Mapping[str, Callable[[], None]], lives: int) -> int:
        self._standby.start()
        daemon.handle_signals(self._loop, self._stop_node)
        self._loop.add_reader(lives, self._orphaned, lives)
        daemon.reload_on_hangup(self._loop, reloads, lambda: self._debug_wire())
        addresses = [
            daemon.READY_AS[option].format(daemon.shown_address(each))
            for option, some in self._answering.items() for each in some
        ]  # fmt: skip
        agreement = self._etcd = self._agreement()
        settings = await self._settings(agreement, partial(ready, addresses))
        if settings is None:
            return 0
        node = self._node = self._made(agreement, settings)
        if self._stop.is_set():
            node.stop()
        with contextlib.suppress(EtcdError):
            if said := namesakes(await agreement.seats(), node.me):
                logger.warning("%s", said)
        replicas = ReplicaListener(
            self._listeners["--replicate"], self._files.replica_certificates, self._replica, self._loop
        )
        replicas.start()
        try:
            comes_back = await node.run()
        except TermEnded as error:
            logger.warning("this node leads no longer: %s", error)
            if self._office is not None:
                self._office.step_down()
            return TERM_ENDED
        finally:
            replicas.stop()
        self._scheduler.close(drop_waiting=True)
        await agreement.close()
        if self._placement is not None:
            await self._placement.close()
        return TERM_ENDED if comes_back else 0

    @property
    def _offset_s(self) -> float | None:
        return self._link.clock_offset_s if self._link is not None else None

    def _agreement(self) -> EtcdAgreement:
        assert self._options.cluster is not None
        return EtcdAgreement(self._etcd_options, self._options.cluster, self._group)

    def _etcd_client(self) -> EtcdClient:
        return EtcdClient(self._etcd_options)

    @property
    def _etcd_options(self) -> EtcdOptions:
        options = self._options
        assert options.etcd is not None
        return EtcdOptions(parse_endpoints(options.etcd), options.etcd_ca, options.etcd_cert, options.etcd_key)

    async def _settings(self, agreement: Agreement, ready: Callable[[str], None]) -> ClusterSettings | None:
        """Wait until the cluster has been initialised, and return its settings; None when the node is stopped before. ``ready``
        is called with the outcome of the first look into etcd."""
        for attempt in range(1 << 62):
            try:
                if (settings := await agreement.settings()) is not None:
                    if not attempt:
                        ready("")
                    else:
                        logger.info("etcd has the settings of the cluster: this node goes on")
                    return settings
                reason = await self._unmade() if attempt % SAY_EVERY == 0 else ""
            except EtcdError as error:
                reason = str(error)
            if not attempt:
                ready(reason)
            if attempt % SAY_EVERY == 0:
                logger.warning("%s", reason)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SETTINGS_RETRY_S):
                    await self._stop.wait()
            if self._stop.is_set():
                return None
        return None

    async def _unmade(self) -> str:
        """Why etcd has no settings for the group. Raises: EtcdError; DataDirectoryError for another group's directory."""
        assert self._options.cluster is not None
        kept = KeptPlaces(self._etcd_client(), self._options.cluster, self._group)
        try:
            groups = (await kept.read()).groups
        finally:
            await kept.close()
        others = [name for name, group in groups.items() if group.made]
        directory = self._options.data_dir
        file = ReplicaFile.load(self._fs, directory)
        if file is not None and (why := misplaced(file.record, self._options.cluster, self._group)) is not None:
            raise DataDirectoryError(f"{directory}: {why}")
        return unmade(self._options.cluster, self._options.group, others, None if file is None else directory)

    def _made(self, agreement: Agreement, settings: ClusterSettings) -> Node:
        """Make the node. Raises: DataDirectoryError when the directory belongs elsewhere, or its topics are missing."""
        options, loop = self._options, self._loop
        file = self._replica_file(settings)
        _, port = parse_address(daemon.shown_address(self._listeners["--replicate"][0]))
        host, _ = parse_address(options.replicate)
        if is_unspecified(host):
            host, _ = parse_address(self._advertised)
        repl = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        me = Member(
            file.record.replica, self._name, self._advertised, repl, self._gateway("--http"), self._gateway("--https"),
            over_tls(
                self._advertised, daemon.shown_address(self._listeners["--listen"][0]), self._gateway("--tls-listen")
            ),
        )  # fmt: skip
        identity = Identity(settings.cluster, self._group, me.replica, self._name)
        link_options = LinkOptions(
            buffer_bytes=options.replicate_buffer_bytes, timeout_s=options.replica_timeout_ms / 1000,
            resync_bytes_per_s=options.resync_rate_bytes, token=self._token,
        )  # fmt: skip
        if options.group is not None:
            self._placement = self._placed(settings, me)
        office = self._office = BrokerOffice(
            options, self._files, self._listeners, self._lock, self._standby, self._clock, loop,
            agreement=self._agreement, ttl_s=settings.ttl_s, rows=self.rows, reload_wire=self._set_debug_wire,
            placement=self._placement, moves=self._moves,
        )  # fmt: skip
        around = Surroundings(
            agreement, settings, me, identity, office, self._fs, options.data_dir, self._clock, loop, self._scheduler,
            link_options, TermOptions(
                options.promote_wait_ms / 1000, options.stall_timeout_ms / 1000, options.scrub_interval_ms / 1000
            ), grouped=options.group is not None,
        )  # fmt: skip
        link = FollowerLink(
            me=identity, file=file, fs=self._fs, root=options.data_dir, clock=self._clock, options=link_options,
            offload=self._scheduler,
            connect=lambda address: connect(address, self._files.replica_certificates),
        )  # fmt: skip
        self._link = link
        node = Node(around, file, link, self._standby.news)
        node.trouble = lambda: str(self._refusals)
        return node

    def _placed(self, settings: ClusterSettings, me: Member) -> GroupPlacement:
        """Make the placement of topics. It has its own etcd client, as it watches other keys than the node does."""
        options, loop = self._options, self._loop
        assert options.cluster is not None
        cluster = options.cluster
        kept = KeptPlaces(self._etcd_client(), cluster, self._group)
        kept.bound(settings.ttl_s)

        def link(
            group: str, trusted: bool, leader: Callable[[], LeaderKey | None], received: Callable[[list[bytes]], None],
            lost: Callable[[], None],
        ) -> PassLink:  # fmt: skip
            asked = Pass(cluster, group, self._token, trusted=trusted)
            return PassLink(asked, leader, lambda: self._files.replica_certificates, loop, received, lost, self._refusals)

        placement = GroupPlacement(kept, self._group, me.replica, loop, link)
        placement.cluster = settings.cluster
        return placement

    def _moves(self, broker: Broker) -> tuple[Departures, Arrivals]:
        """Make the objects for both ends of topic moves between groups."""
        placement = self._placement
        assert placement is not None
        home = Home(placement, broker, self._options.cluster or "", self._token)
        pace = Pace(self._options.resync_rate_bytes)
        arrivals = Arrivals(home, placement.kept, lambda address: connect(address, self._files.replica_certificates))
        return Departures(home, pace), arrivals

    def _gateway(self, option: str) -> str:
        """HOST:PORT at which other machines reach an HTTP listener; "" when they cannot."""
        if not self._listeners.get(option):
            return ""
        host, port = parse_address(daemon.shown_address(self._listeners[option][0]))
        advertised, _ = parse_address(self._advertised)
        if is_unspecified(host):
            host = advertised
        if not is_public(host) and is_public(advertised):
            return ""
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _replica_file(self, settings: ClusterSettings) -> ReplicaFile:
        fs, root = self._fs, self._options.data_dir
        check_no_part(fs, root)
        check_usable(fs, root)  # of a copy that is not there nothing is begun, and no office is sought
        file = ReplicaFile.load(fs, root)
        try:
            found = None if file is None else file.record
            record = record_in(settings, self._options.cluster or "", self._group, found, secrets.token_hex(16))
        except DataDirectoryError as error:
            raise DataDirectoryError(f"{root}: {error}") from None
        return file if file is not None and file.record == record else ReplicaFile.create(fs, root, record)

    async def _replica(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve a connection to the replica listener. Returns: whether a session has taken it."""
        node, begun = self._node, b""
        if self._placement is not None:
            try:
                async with asyncio.timeout(PASS_S) as limit:
                    begun = await reader.readexactly(len(PASS))
                    if begun == MOVE and self._office is not None and (departures := self._office.departures) is not None:
                        limit.reschedule(None)  # it has its own
                        await departures.serve(reader, writer)
                        return False
                    if begun == PASS:
                        trusts = self._options.trusts_nodes
                        here = Pass(self._options.cluster or "", self._group, self._token, trusted=trusts)
                        session = self._office.passed if self._office is not None else lambda trusted: None
                        return await take_passed(reader, writer, here, session, self.leader)
            except (OSError, asyncio.IncompleteReadError):  # a TimeoutError is an OSError
                return False
        if node is not None:
            with contextlib.suppress(TimeoutError):  # a follower may know of the election first
                async with asyncio.timeout(IN_OFFICE_S):
                    await node.in_office.wait()
        if node is not None and node.term is not None:
            await node.term.links.serve(reader, writer, begun)
        else:
            writer.write(f"ERR NOT_LEADER {self.leader() or '-'}\n".encode())
            with contextlib.suppress(OSError):
                await writer.drain()
        return False

    def _stop_node(self) -> None:
        self._stop.set()
        if self._node is not None:
            self._node.stop()

    def _orphaned(self, lives: int) -> None:
        logger.error("the supervisor has died: this node ends, so that the next one finds its directory and addresses free")
        self._loop.remove_reader(lives)
        self._stop_node()

    def _set_debug_wire(self, call: Callable[[], None]) -> None:
        self._debug_wire = call

    # -- as the ``View`` of the standby answers

    def leader(self) -> str | None:
        """HOST:PORT of the leader for clients; None while there is none."""
        leader = self._node.leader if self._node is not None else None
        return leader.member.url if leader is not None else None

    def leader_epoch(self) -> int:
        """The leader's epoch; 0 while there is none."""
        leader = self._node.leader if self._node is not None else None
        return leader.epoch if leader is not None else 0

    def leader_is_certain(self) -> bool:
        """Whether this node hears the leader. If not, the leader may be gone."""
        return self._node is not None and self._node.hears_leader

    def is_elected(self) -> bool:
        """Whether this node is the leader, so that the standby answers end."""
        return self.leader() == self._advertised

    def leader_http(self, scheme: str) -> str | None:
        """URL of the leader's gateway; None while unknown. A leader of an older version does not publish it: then this node's
        own port at the leader's host is assumed."""
        leader = self._node.leader if self._node is not None else None
        if leader is None:
            return None
        where = leader.member.http if scheme == "http" else leader.member.https
        if where is None and (some := self._listeners.get(f"--{scheme}")):
            where = f"{leader.member.url.rpartition(':')[0]}:{some[0].getsockname()[1]}"
        return f"{scheme}://{where}" if where else None

    def describe(self) -> Mapping[str, Any]:
        """The state of the node for ``/healthz``: role, state, epoch, and what it waits for."""
        node = self._node
        found: dict[str, Any] = {"role": "follower", "state": node.state if node is not None else "START"}
        found["epoch"] = self.leader_epoch()
        if node is not None and node.leader is not None:
            member = node.leader.member
            found["leader"] = {"name": member.name, "url": member.url, "http": member.http, "https": member.https}
        if node is not None and node.waits_for:
            found["waits_for"] = node.waits_for
        return found

    def _roles(self, now: str) -> dict[tuple[str, ...], float]:
        return {(state, self._options.group or ""): float(state == now) for state in STATES}

    def rows(self) -> ClusterRows:
        """The metrics of the cluster."""
        node = self._node
        if node is None:
            return ClusterRows({"role": self._roles("START")}, {})
        term, etcd = node.term, self._etcd
        lags = term.links.lags() if term is not None else []
        numbers: dict[str, Mapping[tuple[str, ...], float]] = {
            "role": self._roles(node.state),
            "epoch": {(): term.epoch if term is not None else node.leader.epoch if node.leader is not None else 0},
            "replicas": {(): node.settings.replicas},
            "min_in_sync": {(): node.settings.min_in_sync},
            "isr_size": {(): len(term.in_sync.members) if term is not None else node.in_sync_count},
            "replica_lag_bytes": {(lag.name,): lag.bytes for lag in lags},
            "replica_lag_seconds": {(lag.name,): lag.seconds for lag in lags},
            "lease_remaining_seconds": {(): max(node.lease_remaining_s, 0.0)},
            "failovers_total": {(reason,): float(term is not None and reason == node.elected_as) for reason in REASONS},
            "isr_changes_total": {} if term is None else {(change,): count for change, count in term.in_sync.changes.items()},
            "resync_bytes_total": {(): term.links.copied_bytes if term is not None else 0},
            "damaged_segments": {(): len(node.scrub.found)},
            "scrub_bytes_total": {(): node.scrub.read_bytes},
            "clock_offset_seconds": {} if self._offset_s is None else {(): self._offset_s},
            "etcd_failures_total": {(): etcd.client.failures if etcd is not None else 0},
            "etcd_silent_seconds": {(): etcd.client.silent_s if etcd is not None else 0},
        }
        if self._placement is not None and term is not None:
            numbers |= self._placement.rows()
        synced = term.links.sync_s if term is not None else {}
        return ClusterRows(numbers, {
            "replica_sync_seconds": {(name,): histogram for name, histogram in synced.items()},
            "etcd_request_seconds": {(): etcd.client.request_s} if etcd is not None else {},
        })  # fmt: skip


