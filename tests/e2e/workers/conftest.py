"""An application whose workers use the test's broker."""

import pytest

from tests.support.in_process import InProcess
from toymq import App


@pytest.fixture
def app(broker: InProcess) -> App:
    return App(f"toymq://127.0.0.1:{broker.port}")
