"""``toymq-bench``: load on a real broker, its cost and its limits, and other brokers beside it. Contract: performance.md."""
