"""Interfaces of other queue libraries on top of toymq, for programs that were written for those libraries. Contract:
dialects.md."""
