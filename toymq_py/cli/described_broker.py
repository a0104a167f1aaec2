"""What ``toymq definitions`` works on: a running broker, or the directory of a stopped one."""

import asyncio
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from toymq import sync
from toymq.http_gateway import GatewayFailed, HttpGateway, choose, told_by
from toymq.requests import cluster
from toymq.url import address_with_token
from toymq_py.amqp.definitions import declare_defined, defined
from toymq_py.amqp.vhosts import Vhosts
from toymq_py.broker import ALONE, Broker
from toymq_py.clock import SystemClock
from toymq_py.config import amqp_definitions
from toymq_py.config.alerts import Alert
from toymq_py.config.amqp_definitions import AmqpDefinition, Declare
from toymq_py.config.definitions import (
    Change,
    Definitions,
    PutAlert,
    PutWebhook,
    described,
    done_before,
    plan,
)
from toymq_py.config.options import BrokerOptions
from toymq_py.config.topic_definitions import ChangeSettings, CreateTopic, MakeConsumer
from toymq_py.config.webhooks import SIGNED, Webhook
from toymq_py.errors import BadArgument, ConfigError, DamagedData, DataDirectoryError, DirectoryLocked, RequestError
from toymq_py.partitions import PARTITIONS, wholes_of
from toymq_py.placement import Placement
from toymq_py.runtime.broker_loop import opened_broker
from toymq_py.runtime.definitions import apply_definitions, partition_counts, read_alerts, read_webhooks
from toymq_py.setting_units import format_setting
from toymq_py.storage.directory_owner import check_owner
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.workers_file import load, part_of, worker_path
from toymq_py.units import DURATION_MS_MAX

TIMEOUT_S = 30.0
NEEDS_IT = "webhooks, alerts, exchanges, queues and bindings are reached over HTTP"
PAGE = 1000
AT_ONCE, AT_ONCE_CHARS = 500, 30_000
"""Most declarations of AMQP objects in one request, and their characters: the gateway takes 64 KiB of JSON."""


class GatewayClient:
    """Lists and puts, over HTTP, the definitions of a running broker for which its TCP protocol has no command."""

    def __init__(self, url: str, token: str | None) -> None:
        """Raises: ConfigError."""
        self._gateway = HttpGateway(url, token)

    def present(self) -> dict[str, Webhook]:
        """The webhooks by name; a secret is shown as ``(set)``. Raises: ConfigError."""
        rows = self._ask("GET", "/v1/webhooks")["webhooks"]
        return {str(row["name"]): Webhook.from_json(_defined(Webhook, row)) for row in rows}

    def alerts(self) -> dict[str, Alert]:
        """The alert rules by name; a secret is shown as ``(set)``. Raises: ConfigError."""
        rows = self._ask("GET", "/v1/alerts")["alerts"]
        return {str(row["name"]): Alert.from_json(_defined(Alert, row)) for row in rows}

    def declared(self) -> Iterator[AmqpDefinition]:
        """Exchanges, queues and bindings that outlive a restart. Raises: ConfigError."""
        for kind in amqp_definitions.KINDS:
            known, skip, more = amqp_definitions.FIELDS[kind], 0, True
            while more:
                answer = self._ask("GET", f"/v1/{kind}s?max={PAGE}&skip={skip}")
                for row in answer[f"{kind}s"]:
                    if row["lasting"]:
                        yield AmqpDefinition(kind, {key: row[key] for key in known})
                skip, more = skip + PAGE, answer["more"]

    def declare(self, changes: Sequence[Declare]) -> None:
        """Declare exchanges, queues and bindings. Raises: ConfigError."""
        body: dict[str, list[dict[str, Any]]] = {}
        for change in changes:
            body.setdefault(change.definition.kind, []).append(change.definition.written)
        self._ask("POST", "/v1/amqp:declare", body)

    def put(self, change: PutWebhook | PutAlert) -> None:
        """Put a webhook or an alert rule. Raises: ConfigError."""
        kind, wanted = _put(change)
        if (refusal := _refusal_over_http(change)) is not None:
            raise ConfigError(f"{kind} {change.name}: {refusal}")
        self._ask("PUT", f"/v1/{kind}s/{change.name}", asdict(wanted))

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        try:
            return self._gateway.ask(method, path, body)
        except RequestError as error:
            raise ConfigError(f"{self._gateway.url}: {error.code} {error}") from None
        except GatewayFailed as error:
            raise ConfigError(str(error)) from error


def _defined(kind: type[Webhook] | type[Alert], row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a JSON row that define a webhook or an alert, without its state and without fields of later versions."""
    known = {each.name for each in fields(kind)}
    return {key: value for key, value in row.items() if key in known}


def _put(change: PutWebhook | PutAlert) -> tuple[str, Webhook | Alert]:
    return ("webhook", change.webhook) if isinstance(change, PutWebhook) else ("alert", change.alert)


def _refusal_over_http(change: PutWebhook | PutAlert) -> str | None:
    if _put(change)[1].secret == SIGNED:
        return "it is signed: write its secret into the file to change it over HTTP"
    return None


class RunningBroker:
    """A running broker, reached over TCP, and over HTTP where the TCP protocol has no command."""

    def __init__(
        self, client: sync.Client, gateway: GatewayClient | None, *, named: bool = False, left_out: str | None = None
    ) -> None:  # fmt: skip
        """
        Args:
            named: the user gave the gateway's URL, so a refusal by the gateway is an error.
            left_out: why there is no gateway, for an error.
        """
        self._client = client
        self._gateway = gateway
        self._needed = named
        self.left_out = left_out
        """Why ``present`` has topics and consumers alone; None when it has all."""

    def check(self, wanted: Definitions) -> None:
        """Check that the broker can take the definitions. Raises: ConfigError when some, such as webhooks, need a gateway and
        there is none."""
        of_gateway = {"webhooks": wanted.webhooks, "alerts": wanted.alerts, "exchanges, queues and bindings": wanted.amqp}
        what = next((name for name, some in of_gateway.items() if some), None)
        if what is not None:
            if self._gateway is None:
                raise ConfigError(f"the file has {what}: {self.left_out}")
            self._needed = True

    def present(self) -> Definitions:
        """The webhooks by name. Raises: ConfigError when the gateway refuses, if the user named it or the file needs it."""
        topics, gateway = self._client.topics(), self._gateway
        wholes = wholes_of(row["topic"] for row in topics)
        counts = {name: int(self._client.describe(name)[PARTITIONS]) for name in wholes}
        if gateway is not None:
            try:
                return described(topics, counts, gateway.present(), gateway.alerts(), list(gateway.declared()))
            except ConfigError as error:
                if self._needed:
                    raise
                self.left_out = str(error)
        return described(topics, counts)

    def refusal(self, change: Change) -> str | None:
        """Why ``apply`` would refuse a change, as far as that can be known in advance; None when it would not."""
        if isinstance(change, PutWebhook | PutAlert):
            return _refusal_over_http(change)
        return change.refusal if isinstance(change, Declare | CreateTopic) else None

    def apply(self, wanted: Definitions) -> list[Change]:
        """Create and change what is wanted. Returns: the changes. Raises: ConfigError, which names the changes made before the
        error; they stay."""
        changes = plan(wanted, self.present())
        at = 0
        while at < len(changes):
            some = _together(changes, at)
            try:
                self._make(changes[at], some)
            except (RequestError, ConfigError) as error:
                text, change = str(error), changes[at]
                if not isinstance(change, PutWebhook | PutAlert | Declare):
                    text = f"topic {change.topic}: {error.code} {error}"
                raise ConfigError(text + done_before(changes[:at])) from error
            at += len(some) or 1
        return changes

    def _make(self, change: Change, declarations: Sequence[Declare]) -> None:
        match change:
            case PutWebhook() | PutAlert():
                assert self._gateway is not None, "checked"
                self._gateway.put(change)
            case Declare():
                assert self._gateway is not None, "checked"
                self._gateway.declare(declarations)
            case CreateTopic(refusal=str(refusal)):
                raise BadArgument(refusal)
            case CreateTopic():
                self._client.create(change.topic, _with_units(change.words))
            case ChangeSettings():
                self._client.config(change.topic, _with_units(change.settings))
            case MakeConsumer():
                self._client.seek(change.topic, change.consumer, str(change.start), create=True)


def _together(changes: Sequence[Change], at: int) -> list[Declare]:
    """The declarations at ``changes[at:]`` that fit into one request; none if ``changes[at]`` is another kind of change."""
    some: list[Declare] = []
    chars = 0
    for change in changes[at : at + AT_ONCE]:
        if not isinstance(change, Declare):
            break
        chars += len(json.dumps(change.definition.written)) + len(", ")
        if some and chars > AT_ONCE_CHARS:
            break
        some.append(change)
    return some


def _with_units(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings by the names and units of a client's arguments."""
    return {name: format_setting(name, text) for name, text in settings.items()}


@dataclass(frozen=True)
class StoppedBroker:
    """The data directory of a stopped broker, opened as the broker opens it, under its LOCK."""

    directory: str
    left_out: ClassVar[None] = None

    def check(self, wanted: Definitions) -> None:
        """Accept all definitions: unlike a running broker without gateway, the directory takes webhooks and alerts, too."""

    def present(self) -> Definitions:
        return asyncio.run(self._open(None))[0]

    def refusal(self, change: Change) -> str | None:
        """Why ``apply`` would refuse a change; None when it would not (as ``RunningBroker.refusal``)."""
        return change.refusal if isinstance(change, Declare | CreateTopic) else None

    def apply(self, wanted: Definitions) -> list[Change]:
        """Create and change what is wanted. Returns: the changes. Raises: ConfigError, as ``RunningBroker.apply``."""
        return asyncio.run(self._open(wanted))[1]

    async def _open(self, wanted: Definitions | None) -> tuple[Definitions, list[Change]]:
        directory, placement = self.directory, ALONE
        if (part := part_of(fs := RealFileSystem(), directory)) is not None:  # else it makes the partitions of all workers
            workers = range(load(fs, part.root) or 1)
            directory = worker_path(part.root, part.worker)
            placement = Placement(part.worker, [worker_path(part.root, worker) for worker in workers])
        options = BrokerOptions(  # remove and refuse nothing (ADR 0028): the options it is served with are unknown
            data_dir=directory, min_free_bytes=0, retain_acked_for_ms=DURATION_MS_MAX,
            max_attempts=0, max_topics=1 << 20, max_consumers=1 << 20,
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        try:
            with opened_broker(options, SystemClock(), loop, placement=placement) as broker:
                vhosts = _vhosts(broker, loop)
                rows, hooks, alerts = broker.describe(None), read_webhooks(broker), read_alerts(broker)
                amqp = (each for queues in vhosts for each in defined(queues.topology))
                present = described(rows, partition_counts(broker), hooks, alerts, amqp)
                changes: list[Change] = []
                if wanted is not None:
                    changes += await apply_definitions(wanted, broker)
                    changes += await _declared(vhosts, wanted, changes)
                finished: asyncio.Future[None] = loop.create_future()
                broker.finish(lambda: finished.set_result(None))
                await finished
                return present, changes
        except DirectoryLocked as error:
            if error.command is not None:
                raise ConfigError(str(error)) from error
            reach = "name it with --url" if error.address is not None else "a running broker is reached with --url"
            raise ConfigError(f"{error}: {reach}") from error


def _vhosts(broker: Broker, loop: asyncio.AbstractEventLoop) -> Vhosts:
    """The virtual hosts with the AMQP declarations of a broker that does not serve AMQP. Blocks. Raises: ConfigError."""
    vhosts = Vhosts(broker, loop)
    try:
        vhosts.read()
    except (OSError, DamagedData) as error:
        raise ConfigError(f"amqp.json cannot be read: {error}") from error
    return vhosts


async def _declared(vhosts: Vhosts, wanted: Definitions, before: Sequence[Change]) -> list[Declare]:
    """Declare the exchanges, queues and bindings of ``wanted`` that do not exist. Raises: ConfigError."""
    for definition in wanted.amqp.values():
        vhosts.add(definition.values["vhost"])  # the broker's options say which it serves
    try:
        return await declare_defined(vhosts, wanted.amqp.values())
    except (BadArgument, OSError) as error:
        raise ConfigError(f"{error}{done_before(before)}") from error
    finally:
        vhosts.close()


@contextmanager
def open_described(
    data_dir: str | None, url: str, http_url: str | None, token_file: str | None
) -> Iterator[RunningBroker | StoppedBroker]:
    """The broker that the options name. Raises: DataDirectoryError, ConfigError, ConnectFailed, OSError."""
    if data_dir is not None:
        if not Path(data_dir).is_dir():
            raise DataDirectoryError(f"there is no directory {data_dir}: check the path")
        check_owner(RealFileSystem(), data_dir, "toymq definitions")
        yield StoppedBroker(data_dir)
        return
    address = address_with_token(url, os.environ.get("TOYMQ_TOKEN"), token_file)
    named = GatewayClient(http_url, address.token) if http_url is not None else None
    with sync.connect(address.url, name="toymq", timeout_s=TIMEOUT_S) as client:
        if named is not None:
            yield RunningBroker(client, named, named=True)
            return
        try:
            found = choose(_gateways(client), address, NEEDS_IT)
        except ConfigError as error:
            yield RunningBroker(client, None, left_out=str(error))
            return
        yield RunningBroker(client, GatewayClient(found, address.token))


def _gateways(client: sync.Client) -> Sequence[str] | None:
    """The URLs of the gateways of the process that answers, or of worker 0 (``told_by``); None if unknown."""
    told: dict[str, Any] = {}
    with suppress(RequestError):  # an older broker does not know it
        told = client._ask(cluster())
    gateways: Sequence[str] | None = told_by(told)
    return client.stats().get("gateways") if gateways is None else gateways
