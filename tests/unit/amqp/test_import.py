"""A broker without ``--amqp`` imports no AMQP module."""

import subprocess
import sys

from tests.support.broker_process import environment

PROGRAM = """
import asyncio, sys, tempfile, toymq
from toymq_py import daemon
async def main():
    with tempfile.TemporaryDirectory() as directory:
        async with toymq.open(directory) as mq:
            await mq.pub("t", b"x")
asyncio.run(main())
print([name for name in sys.modules if name.startswith("toymq_py.amqp")])
"""


def test_a_broker_without_it_imports_nothing_of_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stderr, done.stdout) == ("", "[]\n")
