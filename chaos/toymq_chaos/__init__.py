"""Injects faults into a broker, records a history of what clients saw, and checks it against the delivery guarantees. Contract:
reliability.md."""
