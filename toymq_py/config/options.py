"""Options of the broker: frozen, checked once, units last in the name.

Contract: clients.md, "Command lines". An option is one line here: the command line, the environment, ``toymq.toml`` and
docs/configuration.md are made from it. ``cli.options`` knows where a value comes from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from toymq_py.config.amqp_definitions import check_vhost
from toymq_py.config.option_schema import (
    OneOf,
    Text,
    address,
    check_apart,
    check_options,
    count,
    did_you_mean,
    duration,
    flag,
    is_public,
    is_unspecified,
    one_of,
    parse_address,
    parse_endpoint,
    parse_endpoints,
    path,
    several,
    size,
    text,
)
from toymq_py.config.tier_url import parse_tier
from toymq_py.errors import ConfigError
from toymq_py.names import check_cluster_name, check_group_name
from toymq_py.net.host_names import check_host_name
from toymq_py.records import DEFAULT_MAX_PAYLOAD, PAYLOAD_BYTES_LIMIT

FsyncMode = Literal["always", "interval", "never"]
CommitMode = Literal["auto", "thread", "inline"]
LogFormat = Literal["text", "json"]
OVER_TLS = ("--tls-listen", "--https", "--amqps")
OF_ALL_WORKERS = ("--listen", "--tls-listen")
"""Listeners that all workers share: with --workers each takes connections there. Not HTTP: a page that shows one worker would
change with each connection (ADR 0177)."""
OF_CLUSTER = ("etcd", "etcd_ca", "etcd_cert", "etcd_key", "name", "group", "advertise", "replicate_token_file",
              "replicate_cert", "replicate_key", "replicate_ca", "replicate_plaintext")  # fmt: skip
LEVELS = ("debug", "info", "warning", "error")
SUBSYSTEMS = (
    "acceptor", "amqp", "audit", "broker", "cluster", "daemon", "deadletter", "embedded", "gateway", "logs", "metrics",
    "replication", "server", "session", "storage", "subscription", "tier", "topic", "tracing", "wire",
)  # fmt: skip
"""What ``--log-level`` may name: the loggers below ``toymq_py``."""


@dataclass(frozen=True, slots=True)
class LogLevels:
    """The value of ``--log-level``, such as ``info,session=debug``: a default, and levels by subsystem."""

    default: str
    named: Mapping[str, str]

    def of(self, subsystem: str) -> str:
        """The level of a subsystem. ``wire`` logs debug lines only when named, since it has one for every frame."""
        quiet = "info" if self.default == "debug" else self.default
        return self.named.get(subsystem, quiet if subsystem == "wire" else self.default)


def parse_log_levels(text: str) -> LogLevels:
    """Parse ``info``, ``info,session=debug,wire=debug`` or ``wire=debug`` alone. Raises: ConfigError."""
    default = "info"
    named: dict[str, str] = {}
    for position, part in enumerate(text.split(",")):
        subsystem, equals, level = part.strip().rpartition("=")
        if level not in LEVELS:
            raise ConfigError(f"{level!r} is not a level: {', '.join(LEVELS)}")
        if not equals:
            if position:
                raise ConfigError(f"{part!r} has no subsystem: write info,session=debug")
            default = level
        elif subsystem not in SUBSYSTEMS:
            hint = did_you_mean(subsystem, SUBSYSTEMS) or f"; there are {', '.join(SUBSYSTEMS)}"
            raise ConfigError(f"{subsystem!r} is not a subsystem{hint}")
        else:
            named[subsystem] = level
    return LogLevels(default, named)


STATS_LIMITS = ("max_connections", "max_topics", "max_consumers", "max_unacked", "min_free_bytes", "max_attempts")
"""Options that STATS shows under their names."""


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """The options of a broker, served or embedded. Raises: ConfigError for an invalid value."""

    data_dir: str = path("./data", help="Where everything is kept.")
    fsync: FsyncMode = one_of(
        "always", "always", "interval", "never",
        help="When a record is synced: before its OK, every --fsync-interval, or when the operating system decides.",
    )  # fmt: skip
    fsync_interval_ms: int = duration(5, 1, 60_000, help="With --fsync interval: how long a record may wait to be synced.")
    commit: CommitMode = one_of(
        "auto", "auto", "thread", "inline",
        help="Where records are written and synced: on a thread (thread), on the event loop (inline), or on the loop while "
        "they are few, nothing else waits and the disk is quick, and on a thread otherwise (auto).",
    )  # fmt: skip
    segment_bytes: int = size(64 << 20, 4096, 1 << 30, help="Size at which a log file is sealed.")
    min_free_bytes: int = size(256 << 20, help="Publishing is refused (DISK_LOW) below this; acks and deliveries go on.")
    max_payload_bytes: int = size(
        DEFAULT_MAX_PAYLOAD, 1, PAYLOAD_BYTES_LIMIT, name="max_payload", help="Largest message, headers included."
    )  # fmt: skip
    max_connections: int = count(10_000, 1, 1 << 20, help="More are refused (TOO_MANY_CONNECTIONS).")
    max_topics: int = count(10_000, 1, 1 << 20, help="More are refused (TOO_MANY_TOPICS).")
    max_consumers: int = count(1_000, 1, 1 << 20, help="Consumers of one topic.")
    max_subscriptions: int = count(1_000, 1, 1 << 20, help="Subscriptions of one session.")
    max_unacked: int = count(100_000, 1, 1 << 30, help="Unacked messages of a consumer, beyond which it gets no new ones.")
    max_held_bytes: int = size(
        512 << 20, 1 << 20, 1 << 40,
        help="Memory for message bodies and replies that wait, of all connections together; the first 64 KiB of each are free. "
        "Beyond it publishes are refused (QUEUE_FULL) or not read. At most an eighth of --memory-max, whatever is set.",
    )
    address_percent: int = count(50, 1, 100, help="Percent of each limit that one address of another machine may use.")
    token_percent: int = count(50, 1, 100, help="Percent of each limit that one token without admin may use.")
    admin_reserve: int = count(
        16, 0, 1 << 20,
        help="Of connections, of topics and of a topic's consumers the last N are for admins' tokens alone; never more than a "
        "tenth of the limit.",
    )  # fmt: skip
    max_inflight_bytes: int = size(64 << 20, 1 << 16, 1 << 40, help="Publishes of one connection that may wait for the disk.")
    visibility_ms: int = duration(30_000, 1, help="How long a delivery may stay unacked before it is delivered again.")
    max_attempts: int = count(20, 0, 1 << 20, help="Failed attempts after which a message is a dead letter; 0: never.")
    nack_backoff_min_ms: int = duration(100, 1, help="Wait after the first NACK; it doubles with each attempt.")
    nack_backoff_max_ms: int = duration(30_000, 1, help="The longest wait after a NACK.")
    dedupe_keys: int = count(65_536, 0, 1 << 24, help="Keys remembered per topic.")
    dedupe_keys_total: int = count(1_000_000, 0, 1 << 26, help="Keys remembered over all topics.")
    retain_acked_for_ms: int = duration(24 * 3_600_000, help="How long a segment stays after every consumer has acked it.")
    shutdown_timeout_ms: int = duration(5_000, 0, 3_600_000, help="The longest a shutdown takes: late acks, commits, offsets.")
    metrics_objects: int = count(
        2_000, 0, 1 << 20, help="Topics and consumers with series of their own in a scrape; those beyond are added up."
    )
    strict_recovery: bool = flag(help="Do not start when recovery finds lost records.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.nack_backoff_min_ms > self.nack_backoff_max_ms:
            raise ConfigError("nack_backoff_min_ms is above nack_backoff_max_ms")


@dataclass(frozen=True, slots=True)
class ServeOptions(BrokerOptions):
    """The options that only ``toymq serve`` takes: listeners, security, logs. Raises ConfigError."""

    listen: str = address("127.0.0.1:6789", help="Address for clients; port 0 takes a free one.")
    http: str | None = address(None, help="Address of the HTTP gateway and its dashboard; needs the extra [http].")
    https: str | None = address(None, help="Address of the gateway with TLS, with or without --http.")
    amqp: str | None = address(None, help="Address for clients of RabbitMQ: AMQP 0-9-1 (docs/amqp.md).")
    amqps: str | None = address(None, help="Address for clients of AMQP over TLS.")
    amqp_vhost: tuple[str, ...] = several(
        Text("a virtual host such as prod", "NAME", check_vhost), help="Virtual host of AMQP beside `/`; others are refused."
    )
    dialect: tuple[str, ...] = several(OneOf(("tinymq", "mq")), help="Serve another queue's paths, too (docs/dialects.md).")
    mq_delay_ms: int = duration(10_000, 1, help="Dialect mq: how long GET leases a message.")
    private_webhooks: bool = flag(help="Webhooks and alerts may go to this machine and its network.")
    auth_file: str | None = path(None, help="Tokens and what each may do (`toymqctl token create`); SIGHUP reads it again.")
    tls_listen: str | None = address(None, help="Address for clients over TLS, in addition to --listen.")
    tls_cert: str | None = path(None, help="PEM file: the certificate for --tls-listen and --https; SIGHUP reads it again.")
    tls_key: str | None = path(None, help="PEM file: the certificate's private key.")
    tls_client_ca: str | None = path(None, help="PEM file: with TLS a client must show a certificate signed by one of these.")
    metrics: str | None = address(None, help="Serve Prometheus at /metrics of this address.")
    memory_max_bytes: int = size(
        0, name="memory_max",
        help="Resident memory above which publishes are refused (QUEUE_FULL); 0: 80 % of what the machine or cgroup has, "
        "divided by --workers.",
    )  # fmt: skip
    insecure_public: bool = flag(help="Allow listening beyond this machine without an auth file.")
    allowed_host: tuple[str, ...] = several(
        Text("a name such as toymq or queue.example", "NAME", check_host_name),
        help="Host name that HTTP without tokens and --metrics accept, beside localhost, addresses and names of "
        "the certificate.",
    )  # fmt: skip
    definitions: str | None = path(None, help="Definitions file to import at each start (`toymq definitions`).")
    otlp_endpoint: str | None = text(
        None, "URL", parse_endpoint, noun="a URL such as http://localhost:4318",
        help="Collector for the spans of messages whose traceparent is sampled, by OTLP over HTTP.",
    )  # fmt: skip
    tier: str | None = text(
        None, "URL", parse_tier, noun="a URL such as s3://bucket/prefix or file:///mnt/history",
        help="Sealed segments are copied to this bucket, with offsets and settings (docs/tier.md).",
    )  # fmt: skip
    tier_cache_bytes: int = size(
        1 << 30, 1 << 20, 1 << 50, help="With --tier: disk space for segments that are fetched from the bucket to be read."
    )
    tier_local_max_bytes: int = size(
        0, name="tier_local_max",
        help="With --tier: publishing is refused (TIER_BEHIND) while more sealed bytes are not in the bucket; 0: no limit.",
    )  # fmt: skip
    workers: int = count(
        1, 1, 64, help="Broker processes, each with a part of the topics (docs/more-cores.md); `toymq workers` changes it."
    )  # fmt: skip
    cluster: str | None = text(
        None, "NAME", check_cluster_name, noun="a name such as orders",
        help="Take part in a cluster (docs/clusters.md): one of several copies leads and serves, the others follow.",
    )  # fmt: skip
    etcd: str | None = text(
        None, "URL,URL", parse_endpoints, noun="URLs such as http://e1:2379,http://e2:2379",
        help="With --cluster: the members of etcd, where the nodes agree on the leader.",
    )  # fmt: skip
    etcd_ca: str | None = path(None, help="PEM file: the CA that signed the certificates of etcd; the system's by default.")
    etcd_cert: str | None = path(None, help="PEM file: the certificate that this node shows etcd.")
    etcd_key: str | None = path(None, help="PEM file: its private key.")
    name: str | None = text(
        None, "NAME", check_cluster_name, noun="a name such as n1",
        help="With --cluster: name of this node, for people; its host by default.",
    )  # fmt: skip
    group: str | None = text(
        None, "NAME", check_group_name, noun="a name such as a",
        help="With --cluster: the group of this node; several groups share the topics, one alone needs no name.",
    )  # fmt: skip
    advertise: str | None = address(None, help="With --cluster: where clients reach this node; --listen by default.")
    replicate: str = address("127.0.0.1:6791", help="With --cluster: where the others follow this node when it leads.")
    replicate_token_file: str | None = path(None, help="With --cluster: file with a secret that the nodes show each other.")
    replicate_cert: str | None = path(
        None, help="With --cluster: PEM file: what this node shows the others, with TLS; SIGHUP reads it again."
    )
    replicate_key: str | None = path(None, help="With --cluster: PEM file: its private key.")
    replicate_ca: str | None = path(None, help="With --cluster: PEM file: the CA that signed the certificates of all nodes.")
    replicate_plaintext: bool = flag(help="With --cluster: allow --replicate beyond this machine without TLS.")
    replicate_buffer_bytes: int = size(
        64 << 20, 1 << 20, 1 << 32, name="replicate_buffer",
        help="With --cluster: how far a follower may be behind; beyond that it joins anew.",
    )  # fmt: skip
    replica_timeout_ms: int = duration(
        3_000, 100, 60_000, help="With --cluster: a follower that is silent so long is dropped."
    )
    promote_wait_ms: int = duration(
        500, 0, 60_000, help="With --cluster: how long a new leader waits for copies that were in sync."
    )
    stall_timeout_ms: int = duration(
        2_000, 100, 60_000, help="With --cluster: a leader whose disk hangs so long hands over."
    )
    scrub_interval_ms: int = duration(
        24 * 3_600_000, 0, help="With --cluster: time between two reads of all sealed segments, to find damage; 0: never."
    )
    resync_rate_bytes: int = size(
        48 << 20, 1 << 16, 1 << 40, name="resync_rate",
        help="With --cluster: bytes a second of a copy for a follower that lacks much, or of a topic that moves.",
    )  # fmt: skip
    log_level: str = text(
        "info", "LEVELS", parse_log_levels, noun="levels such as info or info,session=debug",
        help="What is logged, on stderr: debug, info, warning or error; also by subsystem: info,session=debug.",
    )  # fmt: skip
    log_format: LogFormat = one_of("text", "text", "json", help="One line, or one JSON object, for each thing that is logged.")
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Where the value of an option comes from, by its attribute; an option that is missing has its default. Not an option
    itself."""

    def __post_init__(self) -> None:
        BrokerOptions.__post_init__(self)  # a class with slots is made anew: super() would not know it
        for option, where in self.listeners().items():
            self.check_exposure(option, parse_address(where)[0])
            if option in OVER_TLS and (self.tls_cert is None or self.tls_key is None):
                raise ConfigError(f"{option} needs --tls-cert and --tls-key")
        check_apart([(f"{option} {where}", parse_address(where)) for option, where in self.listeners().items()])
        self._check_use(("tls_cert", "tls_key", "tls_client_ca"), OVER_TLS)
        self._check_use(("amqp_vhost",), ("--amqp", "--amqps"))
        if self.tier is None and self.tier_local_max_bytes:
            raise ConfigError("--tier-local-max does nothing without --tier")
        self._check_workers()
        self._check_cluster()
        self._check_use(("dialect", "private_webhooks"), ("--http", "--https"))

    def _check_use(self, names: Sequence[str], listeners: Sequence[str]) -> None:
        """Check that options in use have one of the listeners they apply to. Raises: ConfigError, which names the option or
        the environment variable that set it."""
        if not any(option in listeners for option in self.listeners()):
            for name in [each for each in names if getattr(self, each)]:
                where = self.sources.get(name, "")
                flag = where if where.startswith("TOYMQ_") else f"--{name.replace('_', '-')}"
                raise ConfigError(f"{flag} does nothing without {' or '.join(listeners)}")

    def _check_cluster(self) -> None:
        if self.cluster is None:
            for name in OF_CLUSTER:
                if getattr(self, name) not in (None, False):
                    raise ConfigError(f"--{name.replace('_', '-')} does nothing without --cluster")
            return
        if len({self.replicate_cert is None, self.replicate_key is None, self.replicate_ca is None}) > 1:
            raise ConfigError("--replicate-cert, --replicate-key and --replicate-ca belong together: each node shows its own")
        if self.replicate_plaintext and self.replicate_cert is not None:
            raise ConfigError("--replicate-plaintext contradicts --replicate-cert")
        if self.etcd is None:
            raise ConfigError("--cluster needs --etcd: the URLs of its members")
        for name in ("dialect", "amqp", "amqps"):
            if self.group is not None and getattr(self, name):
                raise ConfigError(f"--{name} and --group exclude each other: not every topic is here. Leave one out")
        if self.fsync != "always":
            raise ConfigError(f"--cluster needs --fsync always, not {self.fsync}: OK means on the disks of all in sync")
        option, where = ("--listen", self.listen) if self.advertise is None else ("--advertise", self.advertise)
        host, port = parse_address(where)
        if port == 0 or is_unspecified(host):
            raise ConfigError(f"{option} {where}: others cannot reach this node there: give --advertise HOST:PORT")

    def _check_workers(self) -> None:
        if self.workers == 1:
            return
        for name in ("cluster", "definitions", "dialect", "advertise", "amqp", "amqps"):
            if getattr(self, name):
                raise ConfigError(f"--{name} and --workers exclude each other: leave one out. Another broker can have --{name}")
        if is_unspecified(parse_address(self.listen)[0]):
            raise ConfigError(f"--listen {self.listen}: with --workers clients are sent there: give an address of this machine")
        check_apart([
            *((f"{option} {where}", parse_address(where)) for option, where in self.of_all_workers().items()),
            *(
                (f"{option} {where} of worker {worker}", parse_address(where))
                for worker in range(self.workers) for option, where in self._places_of(worker).items()
            ),
        ])  # fmt: skip

    @property
    def trusts_nodes(self) -> bool:
        """Whether nodes of other groups have all rights: if clients need no token, or a certificate or secret proves nodes."""
        return self.auth_file is None or self.replicate_cert is not None or self.replicate_token_file is not None

    def of_all_workers(self) -> dict[str, str]:
        """The addresses at which every worker takes connections, by option."""
        return {option: where for option, where in self.listeners().items() if option in OF_ALL_WORKERS}

    def of_worker(self, worker: int, data_dir: str) -> "ServeOptions":
        """The options of one worker's process. Where they differ from the given options, ``sources`` tells the given values."""
        own: dict[str, Any] = {each[2:].replace("-", "_"): where for each, where in self._places_of(worker).items()}
        own |= {"workers": 1, "data_dir": data_dir}
        given = {each: f"{self.sources.get(each, 'default')} {getattr(self, each)}, for this worker" for each in own}
        return replace(self, **own, sources={**self.sources, **given})

    def _places_of(self, worker: int) -> dict[str, str]:
        """A worker's own addresses by option. Its port is the given one, or that after a shared one, plus its number; 0 means a
        free port."""
        places: dict[str, str] = {}
        for option, where in self.listeners().items():
            host, _, port = where.rpartition(":")
            own = int(port) + worker + (option in OF_ALL_WORKERS) if int(port) else 0
            if own > 65535:
                raise ConfigError(f"{option} {where}: worker {worker} would have port {own}, over 65535: give a lower one")
            places[option] = f"{host}:{own}"
        return places

    def listeners(self) -> dict[str, str]:
        """The address of each listener, by its option."""
        wanted = {
            "--listen": self.listen, "--http": self.http, "--https": self.https, "--tls-listen": self.tls_listen,
            "--amqp": self.amqp, "--amqps": self.amqps,
            "--metrics": self.metrics, "--replicate": self.replicate if self.cluster is not None else None,
        }  # fmt: skip
        return {option: where for option, where in wanted.items() if where is not None}

    def check_exposure(self, option: str, host: str) -> bool:
        """Check whether a listener may be reached from other machines, before it is bound and again with its bound addresses.

        Args:
            option: the option that names the listener, for the error.
            host: an IP address; a name passes unchecked.

        Returns: whether other machines can reach it.

        Raises: ConfigError when they can and need no credentials: there is no auth file, or for --replicate no TLS or no
        secret. ``insecure_public`` allows that, except plaintext among replicas.
        """
        public = is_public(host)
        if public and option == "--replicate":
            self._check_replicate_exposure(host)
            return public
        if public and option == "--metrics" and not self.insecure_public:
            raise ConfigError(
                f"--metrics: {host} can be reached from other machines and this listener asks for no token; listen on "
                "127.0.0.1, or insist with --insecure-public"
            )
        if public and self.auth_file is None and not self.insecure_public:
            raise ConfigError(
                f"{option}: {host} can be reached from other machines and no token is asked for; listen on 127.0.0.1, "
                "give the broker an --auth-file, or insist with --insecure-public"
            )
        return public

    def _check_replicate_exposure(self, host: str) -> None:
        if self.replicate_cert is None and not self.replicate_plaintext:
            raise ConfigError(
                f"--replicate: {host} can be reached from other machines, and all messages would cross the network in the "
                "clear; give --replicate-cert, --replicate-key and --replicate-ca, or insist with --replicate-plaintext"
            )
        if self.replicate_cert is None and self.replicate_token_file is None and not self.insecure_public:
            raise ConfigError(
                f"--replicate: {host} can be reached from other machines, and no secret is asked for; give all nodes a "
                "--replicate-token-file, or insist with --insecure-public"
            )
