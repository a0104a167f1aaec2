"""The HTTP gateway, beside the TCP server, over the same broker. Contract: gateway.md; ADR 0024. Needs the extra ``[http]``."""

from toymq_py.gateway.http_server import HttpServer

__all__ = ["HttpServer"]
