"""The dialect ``tinymq``: TinyMQ's HTTP API, endpoint by endpoint. Contract: dialects.md, "tinymq"."""

from toymq_py.gateway.tinymq.operations import OPERATIONS
from toymq_py.gateway.tinymq.socket import route

__all__ = ["OPERATIONS", "route"]
