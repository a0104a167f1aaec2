"""toymq over AMQP, with the same frames as RabbitMQ, to compare the two; left out when RabbitMQ is not installed."""

import sys
from collections.abc import Sequence

from toymq.broker_process import serve_command
from toymq_bench.peers.peer import HOST, free_port
from toymq_bench.peers.rabbitmq import AmqpPeer, RabbitMQ


class ToymqAmqp(AmqpPeer):
    """The installed ``toymq`` with its defaults and ``--amqp``."""

    name = "toymq over AMQP"
    program = "beside RabbitMQ"

    @classmethod
    def installed(cls) -> str | None:
        return None if RabbitMQ.installed() is None else sys.executable

    @property
    def durability(self) -> str:
        return "fdatasync before each confirm (group commit)"

    def command(self) -> Sequence[str]:
        own = f"{HOST}:{free_port()}"
        return serve_command(self.directory / "data", own, "--amqp", f"{HOST}:{self.port}")
