"""What ``toymq definitions`` works on: a running broker, or the directory of a stopped one."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from toymq_client import sync
from toymq_py.clock import SystemClock
from toymq_py.config import BrokerOptions
from toymq_py.definitions import Change, ChangeSettings, CreateTopic, Definitions, MakeConsumer, described, plan
from toymq_py.errors import ConfigError, DataDirectoryError, DirectoryLocked, RequestError
from toymq_py.model import DURATION_MS_MAX
from toymq_py.service import apply_definitions, opened_broker
from toymqctl.broker import find_broker


class Running:
    """A broker that runs, over the wire."""

    def __init__(self, client: sync.Client) -> None:
        self._client = client

    def present(self) -> Definitions:
        return described(self._client.topics())

    def make(self, wanted: Definitions) -> list[Change]:
        """Returns: what was changed. Raises: ConfigError, which names the topic; what was changed before stays."""
        changes = plan(wanted, self.present())
        for change in changes:
            try:
                self._make(change)
            except RequestError as error:
                raise ConfigError(f"topic {change.topic}: {error.code} {error}") from error
        return changes

    def _make(self, change: Change) -> None:
        match change:
            case CreateTopic():
                self._client.create(change.topic, change.settings)
            case ChangeSettings():
                self._client.config(change.topic, change.settings)
            case MakeConsumer():
                self._client.seek(change.topic, change.consumer, str(change.start))


@dataclass(frozen=True)
class Stopped:
    """The directory of a broker that does not run. It is opened as the broker would, its LOCK taken."""

    directory: str

    def present(self) -> Definitions:
        return asyncio.run(self._open(None))[0]

    def make(self, wanted: Definitions) -> list[Change]:
        """As ``Running.make``."""
        return asyncio.run(self._open(wanted))[1]

    async def _open(self, wanted: Definitions | None) -> tuple[Definitions, list[Change]]:
        options = BrokerOptions(  # nothing may go for the sake of options that are not those it is served with
            data_dir=self.directory, min_free_bytes=0, retain_acked_for_ms=DURATION_MS_MAX,
            max_attempts=0, max_topics=1 << 20, max_consumers=1 << 20,
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        try:
            with opened_broker(options, SystemClock(), loop) as broker:
                present = described(broker.describe(None))
                changes = await apply_definitions(wanted, broker) if wanted is not None else []
                finished: asyncio.Future[None] = loop.create_future()
                broker.finish(lambda: finished.set_result(None))
                await finished
                return present, changes
        except DirectoryLocked as error:
            raise ConfigError(f"{error}: a running broker is reached with --url") from error


@contextmanager
def reached(data_dir: str | None, url: str, token_file: str | None) -> Iterator[Running | Stopped]:
    """The broker that the options name. Raises: DataDirectoryError, ConfigError, ConnectFailed, OSError."""
    if data_dir is not None:
        if not Path(data_dir).is_dir():
            raise DataDirectoryError(f"there is no directory {data_dir}")
        yield Stopped(data_dir)
        return
    with find_broker(url, os.environ.get("TOYMQ_TOKEN"), token_file).connect() as client:
        yield Running(client)
