"""Interfaces of other queues on top of toymq, for programs that were written to them. Contract: dialects.md."""
