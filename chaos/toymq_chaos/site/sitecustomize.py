"""Python imports this at its start when the folder is on PYTHONPATH: how the harness gets into an unchanged ``toymq serve``."""

from toymq_chaos.inside import install

install()
