"""A broker for each file, and `toymqctl` on it."""

from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from tests.support.broker_process import BrokerProcess
from toymqctl.cli import main as toymqctl


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("data") / "d") as running:
        yield running


@pytest.fixture(scope="module")
def with_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose gateway may reach this machine."""
    folder = tmp_path_factory.mktemp("data") / "d"
    with BrokerProcess(folder, "--http", "127.0.0.1:0", "--private-webhooks") as running:
        yield running


@pytest.fixture
def web(with_gateway: BrokerProcess) -> Callable[..., Result]:
    """Return `toymqctl` on the broker with a gateway: it finds the gateway by itself."""

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(toymqctl, ["--url", f"127.0.0.1:{with_gateway.port}", *arguments])

    return call


@pytest.fixture
def ctl(broker: BrokerProcess) -> Callable[..., Result]:
    def call(*arguments: str, stdin: bytes | str | None = None) -> Result:
        return CliRunner().invoke(toymqctl, ["--url", f"127.0.0.1:{broker.port}", *arguments], input=stdin)

    return call
