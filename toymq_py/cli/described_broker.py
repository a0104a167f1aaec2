"""What ``toymq definitions`` works on: a running broker, or the directory of a stopped one."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from toymq import sync
from toymq.http_gateway import GatewayFailed, HttpGateway
from toymq.url import address_with_token
from toymq_py.clock import SystemClock
from toymq_py.config.alerts import Alert
from toymq_py.config.definitions import (
    Change,
    ChangeSettings,
    CreateTopic,
    Definitions,
    MakeConsumer,
    PutAlert,
    PutWebhook,
    described,
    done_before,
    plan,
)
from toymq_py.config.options import BrokerOptions
from toymq_py.config.webhooks import SIGNED, Webhook
from toymq_py.errors import ConfigError, DataDirectoryError, DirectoryLocked, RequestError
from toymq_py.runtime.broker_loop import opened_broker
from toymq_py.runtime.definitions import apply_definitions, read_alerts, read_webhooks
from toymq_py.units import DURATION_MS_MAX, format_setting

TIMEOUT_S = 30.0


class WebhookClient:
    """Lists and puts the webhooks and alerts of a running broker."""

    def __init__(self, url: str, token: str | None) -> None:
        """Raises: ConfigError."""
        self._gateway = HttpGateway(url, token)

    def present(self) -> dict[str, Webhook]:
        """The webhooks by name; a secret is shown as ``(set)``. Raises: ConfigError."""
        found = {}
        for row in self._ask("GET", "/v1/webhooks")["webhooks"]:
            fields = {key: value for key, value in row.items() if key not in ("name", "failure")}
            found[str(row["name"])] = Webhook.from_json(fields)
        return found

    def alerts(self) -> dict[str, Alert]:
        """The same of the alerts."""
        known = {each.name for each in fields(Alert)}
        return {
            str(row["name"]): Alert.from_json({key: value for key, value in row.items() if key in known})
            for row in self._ask("GET", "/v1/alerts")["alerts"]
        }

    def put(self, change: PutWebhook | PutAlert) -> None:
        """Raises: ConfigError."""
        kind, wanted = ("webhook", change.webhook) if isinstance(change, PutWebhook) else ("alert", change.alert)
        if wanted.secret == SIGNED:
            raise ConfigError(f"{kind} {change.name}: it is signed: write its secret into the file to change it over HTTP")
        self._ask("PUT", f"/v1/{kind}s/{change.name}", asdict(wanted))

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        try:
            return self._gateway.ask(method, path, body)
        except RequestError as error:
            raise ConfigError(f"{self._gateway.url}: {error.code} {error}") from None
        except GatewayFailed as error:
            raise ConfigError(str(error)) from error


class RunningBroker:
    """A running broker, reached over TCP; its webhooks over HTTP."""

    def __init__(self, client: sync.Client, webhooks: WebhookClient | None) -> None:
        self._client = client
        self._webhooks = webhooks

    def check(self, wanted: Definitions) -> None:
        """Raises: ConfigError when there are webhooks and no gateway to put them."""
        if (wanted.webhooks or wanted.alerts) and self._webhooks is None:
            what = "webhooks" if wanted.webhooks else "alerts"
            raise ConfigError(f"the {what} of a running broker are reached over HTTP: name its gateway with --http-url")

    def present(self) -> Definitions:
        gateway = self._webhooks
        if gateway is None:
            return described(self._client.topics())
        return described(self._client.topics(), gateway.present(), gateway.alerts())

    def apply(self, wanted: Definitions) -> list[Change]:
        """Create and change what is wanted. Returns: the changes. Raises: ConfigError, which names the changes before it: they
        stay."""
        changes = plan(wanted, self.present())
        for at, change in enumerate(changes):
            try:
                self._make(change)
            except (RequestError, ConfigError) as error:
                text = str(error)
                if not isinstance(change, PutWebhook | PutAlert):
                    text = f"topic {change.topic}: {error.code} {error}"
                raise ConfigError(text + done_before(changes[:at])) from error
        return changes

    def _make(self, change: Change) -> None:
        match change:
            case PutWebhook() | PutAlert():
                assert self._webhooks is not None, "checked"
                self._webhooks.put(change)
            case CreateTopic():
                self._client.create(change.topic, _with_units(change.settings))
            case ChangeSettings():
                self._client.config(change.topic, _with_units(change.settings))
            case MakeConsumer():
                self._client.seek(change.topic, change.consumer, str(change.start), create=True)


def _with_units(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings with the units that a client's arguments take."""
    return {name: format_setting(name, text) for name, text in settings.items()}


@dataclass(frozen=True)
class StoppedBroker:
    """The data directory of a stopped broker, opened as the broker opens it, under its LOCK."""

    directory: str

    def check(self, wanted: Definitions) -> None:
        """Accept all definitions: the directory holds webhooks and alerts, too."""

    def present(self) -> Definitions:
        return asyncio.run(self._open(None))[0]

    def apply(self, wanted: Definitions) -> list[Change]:
        """As ``RunningBroker.apply``."""
        return asyncio.run(self._open(wanted))[1]

    async def _open(self, wanted: Definitions | None) -> tuple[Definitions, list[Change]]:
        options = BrokerOptions(  # remove and refuse nothing (ADR 0028): the options it is served with are unknown
            data_dir=self.directory, min_free_bytes=0, retain_acked_for_ms=DURATION_MS_MAX,
            max_attempts=0, max_topics=1 << 20, max_consumers=1 << 20,
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        try:
            with opened_broker(options, SystemClock(), loop) as broker:
                present = described(broker.describe(None), read_webhooks(broker), read_alerts(broker))
                changes = await apply_definitions(wanted, broker) if wanted is not None else []
                finished: asyncio.Future[None] = loop.create_future()
                broker.finish(lambda: finished.set_result(None))
                await finished
                return present, changes
        except DirectoryLocked as error:
            if error.command is not None:
                raise ConfigError(str(error)) from error
            reach = "name it with --url" if error.address is not None else "a running broker is reached with --url"
            raise ConfigError(f"{error}: {reach}") from error


@contextmanager
def open_described(
    data_dir: str | None, url: str, http_url: str | None, token_file: str | None
) -> Iterator[RunningBroker | StoppedBroker]:
    """The broker that the options name. Raises: DataDirectoryError, ConfigError, ConnectFailed, OSError."""
    if data_dir is not None:
        if not Path(data_dir).is_dir():
            raise DataDirectoryError(f"there is no directory {data_dir}")
        yield StoppedBroker(data_dir)
        return
    address = address_with_token(url, os.environ.get("TOYMQ_TOKEN"), token_file)
    webhooks = WebhookClient(http_url, address.token) if http_url is not None else None
    with sync.connect(address.url, name="toymq", timeout_s=TIMEOUT_S) as client:
        yield RunningBroker(client, webhooks)
