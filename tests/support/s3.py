"""A server of S3's protocol on loopback; it needs the packages of ``require("s3")``."""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.support.broker_process import TIMEOUT_S
from tests.support.ports import reserved


@contextmanager
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the URL of a place in an empty bucket; environment variables name the server."""
    with reserved() as port:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            endpoint = f"http://127.0.0.1:{port}"
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
            monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
            monkeypatch.setenv("AWS_REGION", "us-east-1")
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                monkeypatch.setenv(name, "test")
            while server.poll() is None:  # it takes seconds to start where others keep the machine busy
                with (
                    suppress(OSError),
                    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/history", method="PUT"), timeout=TIMEOUT_S),
                ):
                    break
            yield "s3://history/of/orders"
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
