"""The ``toymq`` command: the broker and its offline tools. A file per command."""

from toymq_py.cli.main import main

__all__ = ["main"]
