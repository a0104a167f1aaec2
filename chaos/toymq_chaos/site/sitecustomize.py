"""Loads the fault injection into an unchanged ``toymq serve``: Python imports this file at start when its folder is on
PYTHONPATH."""

from toymq_chaos.fault_injection import install

install()
