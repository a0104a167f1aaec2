"""The dialect ``tinymq``: TinyMQ's HTTP API, endpoint by endpoint. Contract: dialects.md, "tinymq"."""

from toymq_py.gateway.tinymq.operations import OPERATIONS

__all__ = ["OPERATIONS"]
