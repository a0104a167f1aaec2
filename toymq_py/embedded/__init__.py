"""An embedded queue in a directory, with no broker to run: the first process that opens the directory serves it.

Contract: clients.md; ADR 0017."""
