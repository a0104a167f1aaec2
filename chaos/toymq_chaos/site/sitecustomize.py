"""Python imports this at its start when the folder is on PYTHONPATH: how the harness gets into an unchanged ``toymq serve``."""

from toymq_chaos.fault_injection import install

install()
