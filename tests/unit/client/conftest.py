"""A broker behind a Unix socket that answers OK to everything."""

from collections.abc import Iterator

import pytest

from tests.support.obliging_broker import ObligingBroker
from toymq import sockets


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObligingBroker]:
    found = ObligingBroker()
    monkeypatch.setattr(sockets, "connect_unix", found.connect)
    yield found
    found.close()
