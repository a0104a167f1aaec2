"""An embedded queue in a directory, with no broker to run: whichever process opens it first serves it. Contract: clients.md;
ADR 0017."""
