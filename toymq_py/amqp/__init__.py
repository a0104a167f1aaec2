"""AMQP 0-9-1, as RabbitMQ speaks it. Contract: amqp.md; docs/amqp.md says what is supported."""

from toymq_py.amqp.server import AmqpServer

__all__ = ["AmqpServer"]
